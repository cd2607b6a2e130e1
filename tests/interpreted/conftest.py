"""These tests run in a process of their own, with TRITON_INTERPRET: test_kernels.py starts it.

Triton decides when a kernel is defined whether it is interpreted, so the tests of an ordinary
run cannot share a process with these.
"""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*"]
