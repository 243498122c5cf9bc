/* Physical limits, measured without any protocol (or with the bare minimum of it).
 *   floor spawn  MODE N INFLIGHT argv...   MODE: bare | pipes | pty
 *        prints: seconds total, then p50 and p99 latency in us
 *   floor pipe   READSIZE PIPESIZE argv... read a child's stdout; prints bytes seconds cpu_seconds
 *   floor wsflood PORT                     WebSocket server; the request path says what to send:
 *        /flood?<raw chunk bytes>&<total bytes>   prebuilt base64 JSON frames
 *        /relay?<read size>&<total bytes>         head -c total /dev/zero -> base64 -> frames
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
extern char **environ;

/* Seconds of a clock that never jumps. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Seconds of CPU this process has used. */
static double cpu_self(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

/* For qsort: ascending doubles. */
static int cmp(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One child in flight. */
struct slot { pid_t pid; int out, err; double t0; };

/* Start a child with nothing, with pipes or with a terminal of its own. */
static void launch(struct slot *s, const char *mode, char **argv) {
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    int o[2] = {-1, -1}, e[2] = {-1, -1}, master = -1, slave = -1;
    s->t0 = now();
    s->out = s->err = -1;
    if (!strcmp(mode, "pipes")) {
        if (pipe2(o, O_CLOEXEC) || pipe2(e, O_CLOEXEC)) exit(3);
        posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&fa, o[1], 1);
        posix_spawn_file_actions_adddup2(&fa, e[1], 2);
        s->out = o[0]; s->err = e[0];
    } else if (!strcmp(mode, "pty")) {
        char name[64];
        master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (master < 0 || grantpt(master) || unlockpt(master) || ptsname_r(master, name, sizeof name)) exit(4);
        slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
        posix_spawnattr_setflags(&at, POSIX_SPAWN_SETSID);
        posix_spawn_file_actions_adddup2(&fa, slave, 0);
        posix_spawn_file_actions_adddup2(&fa, slave, 1);
        posix_spawn_file_actions_adddup2(&fa, slave, 2);
        s->out = master;
    }
    if (posix_spawn(&s->pid, argv[0], &fa, &at, argv, environ)) exit(5);
    if (o[1] >= 0) { close(o[1]); close(e[1]); }
    if (slave >= 0) close(slave);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&at);
}

/* Read a descriptor to its end and close it. */
static void drain(int fd) {
    char b[4096];
    if (fd < 0) return;
    while (read(fd, b, sizeof b) > 0) {}
    close(fd);
}

/* Keep k children in flight until n have ended. */
static int do_spawn(int argc, char **argv) {
    const char *mode = argv[2];
    int n = atoi(argv[3]), k = atoi(argv[4]);
    struct slot *s = calloc(k, sizeof *s);
    double *lat = calloc(n, sizeof *lat);
    int started = 0, done = 0;
    double t = now();
    (void)argc;
    while (started < k && started < n) launch(&s[started++], mode, argv + 5);
    while (done < n) {
        int st;
        pid_t p = waitpid(-1, &st, 0);
        if (p < 0) exit(6);
        for (int i = 0; i < k; i++)
            if (s[i].pid == p) {
                drain(s[i].out);
                drain(s[i].err);
                lat[done++] = now() - s[i].t0;
                s[i].pid = 0;
                if (started < n) { launch(&s[i], mode, argv + 5); started++; }
                break;
            }
    }
    t = now() - t;
    qsort(lat, n, sizeof *lat, cmp);
    printf("%.6f %.1f %.1f\n", t, lat[n / 2] * 1e6, lat[(int)(n * 0.99)] * 1e6);
    return 0;
}

/* Read all that one child writes. */
static int do_pipe(char **argv) {
    size_t rs = atol(argv[2]);
    int ps = atoi(argv[3]), o[2];
    char *buf = malloc(rs);
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    if (pipe2(o, O_CLOEXEC)) return 3;
    if (ps) fcntl(o[0], F_SETPIPE_SZ, ps);
    posix_spawn_file_actions_adddup2(&fa, o[1], 1);
    double t = now(), c = cpu_self();
    pid_t p;
    if (posix_spawn(&p, argv[4], &fa, NULL, argv + 4, environ)) return 5;
    close(o[1]);
    unsigned long long tot = 0;
    ssize_t n;
    while ((n = read(o[0], buf, rs)) > 0) tot += n;
    int st;
    waitpid(p, &st, 0);
    printf("%llu %.6f %.6f\n", tot, now() - t, cpu_self() - c);
    return 0;
}

/* --- WebSocket side ------------------------------------------------------ */
/* Rotate left, for sha1. */
static uint32_t rol(uint32_t x, int n) { return x << n | x >> (32 - n); }
/* SHA-1, for the accept header and nothing else. */
static void sha1(const uint8_t *m, size_t len, uint8_t out[20]) {
    uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    size_t total = ((len + 8) / 64 + 1) * 64;
    uint8_t *d = calloc(1, total);
    memcpy(d, m, len);
    d[len] = 0x80;
    for (int i = 0; i < 8; i++) d[total - 1 - i] = (uint8_t)(((uint64_t)len * 8) >> (8 * i));
    for (size_t o = 0; o < total; o += 64) {
        uint32_t w[80], a = h[0], b = h[1], c = h[2], e = h[3], f = h[4];
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)d[o + 4 * i] << 24 | d[o + 4 * i + 1] << 16 | d[o + 4 * i + 2] << 8 | d[o + 4 * i + 3];
        for (int i = 16; i < 80; i++) w[i] = rol(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        for (int i = 0; i < 80; i++) {
            uint32_t g, k;
            if (i < 20) { g = (b & c) | (~b & e); k = 0x5a827999; }
            else if (i < 40) { g = b ^ c ^ e; k = 0x6ed9eba1; }
            else if (i < 60) { g = (b & c) | (b & e) | (c & e); k = 0x8f1bbcdc; }
            else { g = b ^ c ^ e; k = 0xca62c1d6; }
            uint32_t t = rol(a, 5) + g + f + k + w[i];
            f = e; e = c; c = rol(b, 30); b = a; a = t;
        }
        h[0] += a; h[1] += b; h[2] += c; h[3] += e; h[4] += f;
    }
    free(d);
    for (int i = 0; i < 20; i++) out[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}

/* The base64 alphabet, and all pairs of it. */
static const char B[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static uint16_t B2[4096];
/* Encode n bytes; returns the length. */
static size_t b64(const uint8_t *s, size_t n, char *d) {
    char *p = d;
    size_t i = 0;
    for (; i + 3 <= n; i += 3) {
        uint32_t v = (uint32_t)s[i] << 16 | s[i + 1] << 8 | s[i + 2];
        memcpy(p, &B2[v >> 12], 2);
        memcpy(p + 2, &B2[v & 4095], 2);
        p += 4;
    }
    if (i < n) {
        uint32_t v = (uint32_t)s[i] << 16 | (i + 1 < n ? s[i + 1] << 8 : 0);
        *p++ = B[v >> 18]; *p++ = B[v >> 12 & 63];
        *p++ = i + 1 < n ? B[v >> 6 & 63] : '=';
        *p++ = '=';
    }
    return p - d;
}

/* One output notification as a WebSocket frame; returns its length. */
static size_t frame(uint8_t *dst, const uint8_t *raw, size_t n, unsigned long long seq) {
    char head[160];
    int hl = sprintf(head, "{\"method\":\"process/output\",\"params\":{\"processId\":\"flood\",\"seq\":%llu,\"stream\":\"stdout\",\"chunk\":\"", seq);
    size_t body = hl + (n + 2) / 3 * 4 + 3, o = 0;
    dst[o++] = 0x81;
    if (body < 126) dst[o++] = body;
    else if (body < 65536) { dst[o++] = 126; dst[o++] = body >> 8; dst[o++] = body; }
    else { dst[o++] = 127; for (int i = 7; i >= 0; i--) dst[o++] = body >> (8 * i); }
    memcpy(dst + o, head, hl); o += hl;
    o += b64(raw, n, (char *)dst + o);
    memcpy(dst + o, "\"}}", 3);
    return o + 3;
}

/* Write all of it. */
static int put(int fd, const uint8_t *p, size_t n) {
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0) { if (errno == EINTR) continue; return -1; }
        p += w; n -= w;
    }
    return 0;
}

/* The notifications that end the process. */
static void tail(int fd, unsigned long long seq) {
    char m[256]; uint8_t f[300];
    for (int i = 0; i < 2; i++) {
        int n = i ? sprintf(m, "{\"method\":\"process/closed\",\"params\":{\"processId\":\"flood\",\"seq\":%llu}}", seq + 1)
                  : sprintf(m, "{\"method\":\"process/exited\",\"params\":{\"processId\":\"flood\",\"seq\":%llu,\"exitCode\":0}}", seq);
        f[0] = 0x81; f[1] = n;
        memcpy(f + 2, m, n);
        put(fd, f, n + 2);
    }
}

/* One client from its upgrade request to its end. */
static void serve(int fd) {
    char req[4096] = {0};
    size_t got = 0;
    while (got < sizeof req - 1 && !strstr(req, "\r\n\r\n")) {
        ssize_t r = read(fd, req + got, sizeof req - 1 - got);
        if (r <= 0) return;
        got += r;
    }
    char *k = strcasestr(req, "sec-websocket-key:");
    if (!k) return;
    k += 18;
    while (*k == ' ') k++;
    char key[128];
    int kl = strcspn(k, "\r\n ");
    sprintf(key, "%.*s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", kl, k);
    uint8_t dig[20];
    char acc[40], rsp[256];
    sha1((uint8_t *)key, strlen(key), dig);
    acc[b64(dig, 20, acc)] = 0;
    int n = sprintf(rsp, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", acc);
    put(fd, (uint8_t *)rsp, n);
    char mode[16] = "";
    unsigned long long size = 0, total = 0, seq = 1, sent = 0;
    if (sscanf(req, "GET /%15[a-z]?%llu&%llu", mode, &size, &total) != 3 || size > (1 << 20)) return;
    uint8_t *raw = calloc(1, size), *out = malloc(size * 3);
    if (!strcmp(mode, "flood")) {
        /* a constant frame: only the send path is measured (seq fixed width, not changed) */
        for (; sent < total; sent += size, seq++) {
            static size_t fl;
            if (!sent) fl = frame(out, raw, size, 1);
            if (put(fd, out, fl)) return;
        }
    } else {
        int o[2];
        char tb[32];
        sprintf(tb, "%llu", total);
        char *av[] = {"/usr/bin/head", "-c", tb, "/dev/zero", NULL};
        posix_spawn_file_actions_t fa;
        posix_spawn_file_actions_init(&fa);
        if (pipe2(o, O_CLOEXEC)) return;
        fcntl(o[0], F_SETPIPE_SZ, 1 << 20);
        posix_spawn_file_actions_adddup2(&fa, o[1], 1);
        pid_t p;
        if (posix_spawn(&p, av[0], &fa, NULL, av, environ)) return;
        close(o[1]);
        ssize_t r;
        while ((r = read(o[0], raw, size)) > 0)
            if (put(fd, out, frame(out, raw, r, seq++))) break;
        close(o[0]);
        int st;
        waitpid(p, &st, 0);
    }
    tail(fd, seq);
    char b[256];
    while (read(fd, b, sizeof b) > 0) {}
    free(raw); free(out);
}

/* Accept one client after the other. */
static int do_ws(int port) {
    for (int i = 0; i < 4096; i++) { char c[2] = {B[i >> 6], B[i & 63]}; memcpy(&B2[i], c, 2); }
    signal(SIGPIPE, SIG_IGN);
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(l, (void *)&a, sizeof a) || listen(l, 64)) return 2;
    for (;;) {
        int fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        serve(fd);
        close(fd);
    }
}

int main(int argc, char **argv) {
    if (argc > 5 && !strcmp(argv[1], "spawn")) return do_spawn(argc, argv);
    if (argc > 4 && !strcmp(argv[1], "pipe")) return do_pipe(argv);
    if (argc > 2 && !strcmp(argv[1], "wsflood")) return do_ws(atoi(argv[2]));
    fprintf(stderr, "usage: see the comment at the top of floor.c\n");
    return 1;
}
