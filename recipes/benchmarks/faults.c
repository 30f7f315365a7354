/* Loaded before libc (LD_PRELOAD) by faults.py: the n-th file operation below a folder fails, or ends the process.

   An operation changes files: opening one to write or make it, writing, fsync, rename, mkdir, link, space. Deleting is
   counted as well, and only ends a process: room is never short for it. A write that fails has half written. For
   sharing.py each operation is made slow instead, so that those of several processes mix. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, FULL, ONCE, READ_ONLY, KILL, SLOW };
enum { OPEN, MAKE, DATA, SYNC, RENAME, DELETE };

static int armed, mode, journal = -1;
static long done, at;
static char root[PATH_MAX];

void faults_arm(const char *folder, int how, long n, int log) {
    strncpy(root, folder, sizeof root - 1);
    mode = how, at = n, done = 0, journal = log, armed = 1;
}
long faults_done(void) { armed = 0; return done; }

#define NEXT(name) ({ static __typeof__(&name) f; if (!f) f = (__typeof__(&name))dlsym(RTLD_NEXT, #name); f; })

static int inside(const char *path) { return !strncmp(path, root, strlen(root)); }

static int resolved(int dir, const char *path, char *out) {
    char link[64];
    ssize_t n = 0;
    if (path && path[0] == '/') { snprintf(out, PATH_MAX, "%s", path); return inside(out); }
    if (dir == AT_FDCWD) { if (!getcwd(out, PATH_MAX)) return 0; n = strlen(out); }
    else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        if ((n = readlink(link, out, PATH_MAX - 1)) < 0) return 0;
        out[n] = 0;
    }
    if (path) snprintf(out + n, PATH_MAX - n, "/%s", path);
    return inside(out);
}

/* 0: go on. 1: fail, errno is set. */
static int point(int kind, int dir, const char *path, int created) {
    char full[PATH_MAX], line[PATH_MAX + 4];
    static const int errors[] = {0, ENOSPC, EIO, EROFS, 0, 0};
    int saved = errno, hit;
    if (!armed || !resolved(dir, path, full)) { errno = saved; return 0; }
    errno = saved;
    if (mode == SLOW) { usleep(at); errno = saved; return 0; }
    hit = __sync_fetch_and_add(&done, 1) == at;
    if (journal >= 0 && NEXT(write)(journal, line, snprintf(line, sizeof line, "%d %s\n", kind, full)) < 0) abort();
    if (mode == COUNT) return 0;
    if (mode == KILL) return hit;
    if (kind == DELETE && mode != READ_ONLY) return 0;
    if (mode == FULL && !(hit || (done > at && (kind == MAKE || kind == DATA)))) return 0;
    if (mode == FULL && kind == OPEN && !created) return 0;
    if (mode == ONCE && !hit) return 0;
    errno = errors[mode];
    return 1;
}
static int end(int result) {
    if (mode == KILL) kill(getpid(), SIGKILL);
    return result;
}

static int opens(int dir, const char *path, int flags) {
    char full[PATH_MAX];
    int absent;
    if (!armed || !((flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT) || !resolved(dir, path, full)) return 0;
    absent = flags & O_CREAT && access(full, F_OK);
    return point(absent ? MAKE : OPEN, dir, path, absent);
}
#define MODE int m = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list v; va_start(v, flags); m = va_arg(v, int); va_end(v); }
int open(const char *path, int flags, ...) {
    MODE if (opens(AT_FDCWD, path, flags)) return end(-1);
    return NEXT(open)(path, flags, m);
}
int open64(const char *path, int flags, ...) {
    MODE if (opens(AT_FDCWD, path, flags)) return end(-1);
    return NEXT(open64)(path, flags, m);
}
int openat(int dir, const char *path, int flags, ...) {
    MODE if (opens(dir, path, flags)) return end(-1);
    return NEXT(openat)(dir, path, flags, m);
}
int openat64(int dir, const char *path, int flags, ...) {
    MODE if (opens(dir, path, flags)) return end(-1);
    return NEXT(openat64)(dir, path, flags, m);
}
static int fopens(const char *path, const char *how) {
    int flags = strpbrk(how, "wa") ? O_WRONLY | O_CREAT : strchr(how, '+') ? O_RDWR : O_RDONLY;
    return opens(AT_FDCWD, path, flags);
}
FILE *fopen(const char *path, const char *how) {
    if (fopens(path, how)) { end(0); return NULL; }
    return NEXT(fopen)(path, how);
}
FILE *fopen64(const char *path, const char *how) {
    if (fopens(path, how)) { end(0); return NULL; }
    return NEXT(fopen64)(path, how);
}

#define FAILING(half) if (armed && point(DATA, fd, NULL, 0)) { int e = errno; half; errno = e; return end(-1); }
ssize_t write(int fd, const void *data, size_t size) {
    FAILING(if (size > 1 && mode != READ_ONLY) NEXT(write)(fd, data, size / 2))
    return NEXT(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t where) {
    FAILING(if (size > 1 && mode != READ_ONLY) NEXT(pwrite)(fd, data, size / 2, where))
    return NEXT(pwrite)(fd, data, size, where);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t where) {
    FAILING(if (size > 1 && mode != READ_ONLY) NEXT(pwrite64)(fd, data, size / 2, where))
    return NEXT(pwrite64)(fd, data, size, where);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    FAILING(if (count > 1 && mode != READ_ONLY) NEXT(writev)(fd, parts, count / 2))
    return NEXT(writev)(fd, parts, count);
}
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    int fd = fileno(file);
    if (armed && fd > 2 && point(DATA, fd, NULL, 0)) {
        int e = errno;
        if (count > 1 && mode != READ_ONLY) { NEXT(fwrite)(data, size, count / 2, file); fflush(file); }
        errno = e;
        end(0);
        return 0;
    }
    return NEXT(fwrite)(data, size, count, file);
}
ssize_t sendfile(int fd, int from, off_t *where, size_t size) {
    FAILING()
    return NEXT(sendfile)(fd, from, where, size);
}
ssize_t sendfile64(int fd, int from, off64_t *where, size_t size) {
    FAILING()
    return NEXT(sendfile64)(fd, from, where, size);
}
ssize_t copy_file_range(int from, off64_t *a, int fd, off64_t *b, size_t size, unsigned flags) {
    FAILING()
    return NEXT(copy_file_range)(from, a, fd, b, size, flags);
}
int ftruncate(int fd, off_t size) { FAILING() return NEXT(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { FAILING() return NEXT(ftruncate64)(fd, size); }
int posix_fallocate(int fd, off_t a, off_t b) {
    if (armed && point(DATA, fd, NULL, 0)) { end(0); return errno; }
    return NEXT(posix_fallocate)(fd, a, b);
}
int posix_fallocate64(int fd, off64_t a, off64_t b) {
    if (armed && point(DATA, fd, NULL, 0)) { end(0); return errno; }
    return NEXT(posix_fallocate64)(fd, a, b);
}
#define SYNCING(name) int name(int fd) { if (armed && point(SYNC, fd, NULL, 0)) return end(-1); return NEXT(name)(fd); }
SYNCING(fsync)
SYNCING(fdatasync)

#define AT(kind, dir, path) if (armed && point(kind, dir, path, 1)) return end(-1)
int rename(const char *a, const char *b) { AT(RENAME, AT_FDCWD, b); return NEXT(rename)(a, b); }
int renameat(int c, const char *a, int d, const char *b) { AT(RENAME, d, b); return NEXT(renameat)(c, a, d, b); }
int renameat2(int c, const char *a, int d, const char *b, unsigned f) {
    AT(RENAME, d, b);
    return NEXT(renameat2)(c, a, d, b, f);
}
int mkdir(const char *path, mode_t m) { AT(MAKE, AT_FDCWD, path); return NEXT(mkdir)(path, m); }
int mkdirat(int dir, const char *path, mode_t m) { AT(MAKE, dir, path); return NEXT(mkdirat)(dir, path, m); }
int link(const char *a, const char *b) { AT(MAKE, AT_FDCWD, b); return NEXT(link)(a, b); }
int linkat(int c, const char *a, int d, const char *b, int f) { AT(MAKE, d, b); return NEXT(linkat)(c, a, d, b, f); }
int symlink(const char *a, const char *b) { AT(MAKE, AT_FDCWD, b); return NEXT(symlink)(a, b); }
int symlinkat(const char *a, int dir, const char *b) { AT(MAKE, dir, b); return NEXT(symlinkat)(a, dir, b); }
int unlink(const char *path) { AT(DELETE, AT_FDCWD, path); return NEXT(unlink)(path); }
int unlinkat(int dir, const char *path, int f) { AT(DELETE, dir, path); return NEXT(unlinkat)(dir, path, f); }
int rmdir(const char *path) { AT(DELETE, AT_FDCWD, path); return NEXT(rmdir)(path); }
int remove(const char *path) { AT(DELETE, AT_FDCWD, path); return NEXT(remove)(path); }
