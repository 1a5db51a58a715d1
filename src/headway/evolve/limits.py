"""Limits of a disposable process, which the operating system enforces.

The operating system limits memory, CPU time, files and processes. With pyseccomp (on Linux), the kernel also denies the
system calls that a simulation does not need: a process can read files, but it cannot write files, open sockets or start
processes.
"""

import contextlib
import ctypes
import errno
import os
import signal
import sys
from functools import cache
from importlib import import_module
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError

MB: Final = 1 << 20
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38  # options of Linux's prctl

# System calls that Python needs to compute and to read files. All other calls are denied, even calls of future kernels.
ALLOWED: Final = """
    read readv pread64 preadv write writev close lseek _llseek dup dup2 dup3 fcntl fcntl64 pipe pipe2
    poll ppoll select pselect6 _newselect epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd eventfd2
    stat stat64 lstat lstat64 fstat fstat64 fstatat64 newfstatat statx statfs statfs64 fstatfs fstatfs64
    access faccessat readlink readlinkat getcwd chdir getdents getdents64 fadvise64 readahead
    mmap mmap2 munmap mprotect mremap madvise brk mincore membarrier
    futex futex_time64 get_robust_list set_robust_list rseq set_tid_address arch_prctl sched_yield
    sched_getaffinity sched_getparam sched_getscheduler getcpu
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending sigaltstack sigreturn restart_syscall pause
    alarm setitimer getitimer nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times
    clock_gettime64 clock_getres_time64 clock_nanosleep_time64
    getpid getppid gettid getuid geteuid getgid getegid getpgrp getpgid getsid getgroups getresuid getresgid
    getrandom getrusage getrlimit ugetrlimit sysinfo uname exit exit_group
"""
WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Allowed ioctls: read the state and size of a terminal, read the number of readable bytes, and change close-on-exec.
IOCTLS: Final = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)
UNKNOWN: Final = ("clone3", "openat2", "faccessat2")  # calls that get ENOSYS, so that the C library uses older calls


class Limits(Struct, frozen=True):
    """Limits of one call in a disposable process."""

    memory_mb: int = 2048  # maximum memory in MB, in addition to the memory of the parent process
    cpu_s: float = 60.0  # maximum CPU time, rounded up to whole seconds
    deadline_s: float = 60.0  # maximum wall-clock time
    result_mb: int = 64

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and isfinite(value)):
                raise HeadwayError(f"limits.{name}: must be a number above 0, got {shown(value)}.")


def confine(limits: Limits) -> None:
    """Set the limits of this process. The process cannot raise them again."""
    resource = import_module("resource")
    memory, seconds = _address_space() + int(limits.memory_mb * MB), ceil(limits.cpu_s)
    for name, soft, hard in (
        ("RLIMIT_AS", memory, memory),
        ("RLIMIT_CPU", seconds, seconds + 1),  # the soft limit sends SIGXCPU, the hard limit SIGKILL
        ("RLIMIT_FSIZE", 0, 0),
        ("RLIMIT_NPROC", 0, 0),
        ("RLIMIT_CORE", 0, 0),
    ):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # some systems lack this limit
            resource.setrlimit(getattr(resource, name), (soft, hard))
    signal.alarm(ceil(limits.deadline_s) + 1)  # this ends the process even if the zygote has ended
    control(PR_SET_NO_NEW_PRIVS, 1)
    calls = sieve()
    if calls is not None:
        with contextlib.suppress(OSError):  # the kernel does not support the filter
            calls.load()


def _address_space() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def control(option: int, value: int) -> None:
    """Call Linux's prctl. On other systems, do nothing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@cache
def sieve() -> Any:
    """Return the filter of system calls. If pyseccomp is not available, return None. The zygote (the process that forks
    the disposable processes) creates the filter only once, because creating a filter takes longer than a fork."""
    if sys.platform != "linux":
        return None
    try:
        library = import_module("pyseccomp")
    except (ImportError, RuntimeError, OSError):  # the package or libseccomp is missing
        return None
    allow, argument = library.ALLOW, library.Arg
    calls = library.SyscallFilter(library.ERRNO(errno.EPERM))
    for name in ALLOWED.split():
        _rule(calls, allow, name)
    for name in UNKNOWN:
        _rule(calls, library.ERRNO(errno.ENOSYS), name)
    for name, place in (("open", 1), ("openat", 2)):
        _rule(calls, allow, name, argument(place, library.MASKED_EQ, WRITING, 0))
    for request in IOCTLS:
        _rule(calls, allow, "ioctl", argument(1, library.EQ, request))
    _rule(calls, allow, "prlimit64", argument(2, library.EQ, 0))  # allowed only to read a limit, not to set it
    return calls


def _rule(calls: Any, action: int, name: str, *arguments: Any) -> None:
    with contextlib.suppress(OSError, ValueError):  # this system call does not exist on this processor
        calls.add_rule(action, name, *arguments)
