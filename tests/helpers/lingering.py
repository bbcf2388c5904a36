"""Stands for a server whose own child would outlive it: ``python -m lingering --host … --port …``."""

import os
import subprocess
import sys

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(os.getpid(), child.pid, flush=True)
child.wait()
