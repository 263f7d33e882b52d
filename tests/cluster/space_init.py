"""Process 1 of a box: reaps orphans and lives exactly as long as the process that started the box.

Run as `space_init.py PIDFD HOSTNAME HOSTS`. When this process ends, the kernel kills everything else in its
PID namespace. It says "ready" once the namespaces are furnished.
"""

import select
import signal
import socket
import subprocess
import sys


def main(owner: int, hostname: str, hosts: str) -> None:
    # Slurm's daemons listen on what their host's name resolves to: here that is the loopback address.
    socket.sethostname(hostname)
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    # An ignored SIGCHLD makes the kernel reap the orphans handed to process 1.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    death = select.poll()
    death.register(owner, select.POLLIN)  # a pidfd is readable once its process is dead
    death.poll()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
