"""`python die.py COUNT FOLDER N DELAY train ...`: microtrain, dead of SIGKILL at its N-th write.

Writes are what changes names or begins and syncs files below FOLDER; how many there were so far
stands in the file COUNT. Death comes DELAY seconds after the N-th began: N = 0 is never.
"""

import os
import runpy
import signal
import sys
import threading
import time
from typing import Any

NAMES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.symlink", "os.link"}
count_file, folder, last, delay = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
book = os.open(count_file, os.O_WRONLY | os.O_CREAT, 0o644)
count = 0


def die() -> None:
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


def write() -> None:
    global count
    count += 1
    os.pwrite(book, str(count).encode(), 0)
    if count == last:
        if delay:
            threading.Thread(target=die, daemon=True).start()
        else:
            die()


def heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        below = arguments[2] & (os.O_WRONLY | os.O_RDWR) and str(arguments[0]).startswith(folder)
    else:  # rmtree names what it removes relative to an open directory, the last argument
        below = event in NAMES and (str(arguments[0]).startswith(folder) or arguments[-1] != -1)
    if below:
        write()


def synced(descriptor: int, fsync=os.fsync) -> None:
    write()
    fsync(descriptor)


sys.addaudithook(heard)
os.fsync = synced
sys.argv = ["microtrain", *sys.argv[5:]]
runpy.run_module("microtrain", run_name="__main__", alter_sys=True)
