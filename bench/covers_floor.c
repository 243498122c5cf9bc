/* The kernel's part of covering missing names: they are made, a file system of its own is mounted
 * on each in a mount namespace, that namespace ends, and they are removed.  In C and without any
 * record or check, so no sandbox that covers as many names can cost less than this beside one that
 * covers none.
 *   cc -O2 -o covers_floor bench/covers_floor.c && ./covers_floor FOLDER [NAMES [MOUNTS]]
 *        FOLDER: an empty one on the file system in question; MOUNTS: so many others are copied
 *        prints: medians of 40 rounds in ms
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 40, MOST = 1000, FSOPEN = 430, FSCONFIG = 431, FSMOUNT = 432, MOVE_MOUNT = 429 };
enum { MAKE, COVER, END, REMOVE, WITHOUT, STEPS };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

static void check(int bad, const char *what) {
    if (bad) {
        perror(what);
        exit(1);
    }
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    check(fd < 0 || write(fd, text, strlen(text)) < 0, path);
    close(fd);
}

static const char *name(int index) {
    static char text[64];
    sprintf(text, "repository%d/%s", index / 2, index % 2 ? ".codex" : ".agents");
    return text;
}

static int new_tmpfs(void) {
    int fs = syscall(FSOPEN, "tmpfs", 0);
    check(fs < 0 || syscall(FSCONFIG, fs, 1, "mode", "0555", 0) != 0, "fsopen");
    check(syscall(FSCONFIG, fs, 6, 0, 0, 0) != 0, "tmpfs");
    int mount = syscall(FSMOUNT, fs, 0, 0);
    check(mount < 0, "fsmount");
    close(fs);
    return mount;
}

/* In a copy of the mounts: make covers, lay them onto the names when told, end when told. */
static void sandbox(int names, int go, int told) {
    int cover[MOST];
    char byte = 0;
    check(unshare(CLONE_NEWNS) != 0, "unshare");
    for (int i = 0; i < names; i++) cover[i] = new_tmpfs();
    check(write(told, &byte, 1) != 1 || read(go, &byte, 1) != 1, "go");
    for (int i = 0; i < names; i++) {
        int place = open(name(i), O_PATH | O_NOFOLLOW);
        check(syscall(MOVE_MOUNT, cover[i], "", place, "", 0x44) != 0, "move_mount");
        close(place), close(cover[i]);
    }
    check(write(told, &byte, 1) != 1, "told");
    read(go, &byte, 1);
    _exit(0);
}

static void one_round(int names, double *took) {
    int go[2], told[2];
    char byte = 0;
    check(pipe2(go, O_CLOEXEC) != 0 || pipe2(told, O_CLOEXEC) != 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        close(go[1]), close(told[0]);
        sandbox(names, go[0], told[1]);
    }
    close(go[0]), close(told[1]);
    check(child < 0 || read(told[0], &byte, 1) != 1, "child");
    double began = now();
    for (int i = 0; i < names; i++) check(mkdir(name(i), 0755) != 0, "mkdir");
    took[MAKE] = now() - began, began = now();
    check(write(go[1], &byte, 1) != 1 || read(told[0], &byte, 1) != 1, "cover");
    took[COVER] = now() - began, began = now();
    close(go[1]);
    check(waitpid(child, 0, 0) != child, "wait");
    took[END] = now() - began, began = now();
    for (int i = 0; i < names; i++) check(rmdir(name(i)) != 0, "rmdir");
    took[REMOVE] = now() - began;
    close(told[0]);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    check(argc < 2 || chdir(argv[1]) != 0, "FOLDER");
    int names = argc > 2 ? atoi(argv[2]) : 130, mounts = argc > 3 ? atoi(argv[3]) : 415;
    static double all[STEPS][ROUNDS];
    char text[64];
    int uid = getuid(), gid = getgid();
    check(names > MOST, "NAMES");
    check(unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0, "unshare");
    write_file("/proc/self/setgroups", "deny");
    sprintf(text, "0 %d 1", uid), write_file("/proc/self/uid_map", text);
    sprintf(text, "0 %d 1", gid), write_file("/proc/self/gid_map", text);
    check(mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) != 0, "private");
    for (int i = 0; i < mounts || i <= names / 2; i++) {
        sprintf(text, "repository%d", i);
        check(mkdir(text, 0755) != 0, "mkdir");
        check(i < mounts && mount(text, text, 0, MS_BIND, 0) != 0, "mount");
    }
    check(chdir(".") != 0, "FOLDER");
    for (int round = 0; round < ROUNDS; round++) {
        double took[STEPS], none[STEPS];
        one_round(names, took), one_round(0, none);
        for (int i = MAKE; i <= REMOVE; i++) all[i][round] = took[i];
        all[WITHOUT][round] = none[END];
        usleep(20000);
    }
    for (int i = 0; i < STEPS; i++) qsort(all[i], ROUNDS, sizeof(double), by_size);
    for (int i = 0; i < mounts || i <= names / 2; i++) {
        sprintf(text, "repository%d", i);
        umount2(text, MNT_DETACH), rmdir(text);
    }
    printf("made %.2f, covered %.2f, end %.2f (without covers %.2f), removed %.2f ms\n",
           all[MAKE][20], all[COVER][20], all[END][20], all[WITHOUT][20], all[REMOVE][20]);
    return 0;
}
