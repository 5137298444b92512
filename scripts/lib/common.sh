# shellcheck shell=bash
# What every script needs: where the repository is, how to speak and how to fail.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
build=$root/build
venv=$root/.venv

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# fail CODE MESSAGE: exit codes are those of mnist-train (2: usage or set-up, 1: the rest).
fail() {
  say "$2"
  exit "$1"
}

# Jobs that compile at once: one a core, and at most one a 2 GB of free memory.
build_jobs() {
  local cores memory_kb by_memory
  cores=$(nproc)
  memory_kb=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  by_memory=$((memory_kb / 2000000))
  if ((by_memory < 1)); then by_memory=1; fi
  echo $((cores < by_memory ? cores : by_memory))
}

# Unpacked from scripts/bundle's archive: programs are there, and nothing to build them from.
is_bundle() { [[ -x $root/bin/mnist-train ]]; }

has_nvidia_driver() {
  [[ -e /proc/driver/nvidia/version || -e /dev/nvidiactl || -e /usr/lib/wsl/lib/libcuda.so.1 ]] ||
    ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'
}
