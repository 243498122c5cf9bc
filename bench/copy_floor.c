/* The kernel's part of a sandboxed start: the program that copies a template, with its pipes and
 * lines, becomes /bin/true and is waited for.  No server, keeper, client or placeholder.
 *   copy_floor NAMESPACE PROGRAM PACKET BYTES SECONDS INFLIGHT   (the first three: inherited fds)
 *        prints: starts, seconds, CPU seconds of the machine, median us from start to end
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NAMESPACE = 3, INFO = 5, READY = 7, COPY = 8, LINE = 11, ANNOUNCED = 13, HIGH = 400 };
enum { MOST = 256, LONGEST = 65536 };

/* One sandbox in flight, and what its parent holds of it. */
struct one {
    pid_t pid;
    int out, err, info, ready, listener;
    double began;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* CPU seconds of the whole machine so far, without waiting. */
static double machine(void) {
    long long f[8] = {0};
    FILE *file = fopen("/proc/stat", "r");
    int got = file ? fscanf(file, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", f, f + 1, f + 2,
                            f + 3, f + 4, f + 5, f + 6, f + 7) : 0;
    if (file) fclose(file);
    if (got != 8) exit(2);
    return (f[0] + f[1] + f[2] + f[5] + f[6] + f[7]) / (double)sysconf(_SC_CLK_TCK);
}

static void check(int bad, const char *what) {
    if (bad) {
        perror(what);
        exit(1);
    }
}

/* An fd above all that a child is given. */
static int high(int fd) {
    int found = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    check(found < 0, "dup");
    close(fd);
    return found;
}

static int listener_from(int line) {
    char word, space[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {&word, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space,
                             .msg_controllen = sizeof space};
    check(recvmsg(line, &message, MSG_CMSG_CLOEXEC) != 1, "no listener");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void start(struct one *one, int names, int program, const char *packet, size_t size) {
    int out[2], err[2], info[2], ready[2], line[2], told[2];
    one->began = now();
    check(pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || pipe2(info, O_CLOEXEC), "pipe");
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ready) ||
          socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) ||
          socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, told), "socketpair");
    check(write(ready[0], "r", 1) != 1, "write");
    int given[] = {out[1], err[1], info[1], ready[1], line[1], told[1]};
    int number[] = {1, 2, INFO, READY, LINE, ANNOUNCED};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    for (int i = 0; i < 6; i++) {
        given[i] = high(given[i]);
        posix_spawn_file_actions_adddup2(&actions, given[i], number[i]);
    }
    posix_spawn_file_actions_adddup2(&actions, names, NAMESPACE);
    posix_spawn_file_actions_adddup2(&actions, program, COPY);
    posix_spawnattr_t how;
    posix_spawnattr_init(&how);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSID);
    char *argv[] = {"/proc/self/fd/8", NULL}, *env[] = {NULL};
    errno = posix_spawn(&one->pid, argv[0], &actions, &how, argv, env);
    check(errno != 0, "posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&how);
    for (int i = 0; i < 6; i++) close(given[i]);
    check(send(line[0], packet, size, 0) != (ssize_t)size, "send");
    close(line[0]);
    one->listener = listener_from(told[0]);
    close(told[0]);
    one->out = out[0], one->err = err[0], one->info = info[0], one->ready = ready[0];
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    static struct one flying[MOST];
    static char packet[LONGEST];
    static double took[1 << 20];
    if (argc != 7) return 2;
    int names = high(atoi(argv[1])), program = high(atoi(argv[2]));
    size_t size = strtoul(argv[4], NULL, 10);
    int width = atoi(argv[6]), count = 0;
    if (size > LONGEST || width > MOST) return 2;
    check(pread(atoi(argv[3]), packet, size, 0) != (ssize_t)size, "packet");
    double begin = now(), stop = begin + atof(argv[5]), cpu = machine();
    for (int i = 0; i < width; i++) start(flying + i, names, program, packet, size);
    for (int left = width; left > 0;) {
        int status;
        pid_t pid = wait(&status);
        check(pid < 0 || status != 0, "the command failed");
        for (int i = 0; i < width; i++) {
            struct one *one = flying + i;
            if (one->pid != pid) continue;
            if (count < 1 << 20) took[count++] = now() - one->began;
            int held[] = {one->out, one->err, one->info, one->ready, one->listener};
            for (int k = 0; k < 5; k++) close(held[k]);
            if (now() < stop) start(one, names, program, packet, size);
            else left--;
        }
    }
    double seconds = now() - begin;
    cpu = machine() - cpu;
    qsort(took, count, sizeof *took, ascending);
    printf("%d %f %f %f\n", count, seconds, cpu, took[count / 2] * 1e6);
    return 0;
}
