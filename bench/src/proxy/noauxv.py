"""Runs a program in which prctl(PR_GET_AUXV) fails, as on kernels before 6.4.

Valgrind hides the vDSO from a program in /proc/self/auxv, but not from this call.
"""
import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_GET_AUXV = 38, 22, 0x41555856
PRCTL = {"x86_64": 157, "aarch64": 167}[os.uname().machine]
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER, FIRST_ARGUMENT = 0, 16
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | 22  # EINVAL

program = b"".join(
    struct.pack("HBBI", *step)
    for step in [
        (LOAD, 0, 0, NUMBER),
        (IF_EQUAL, 0, 3, PRCTL),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (IF_EQUAL, 0, 1, PR_GET_AUXV),
        (RETURN, 0, 0, FAIL),
        (RETURN, 0, 0, ALLOW),
    ]
)
text = ctypes.create_string_buffer(program)
filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, 2, filter_, 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
