# shellcheck shell=bash
# Common functions of the scripts: paths, messages and failures, configuring and building.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
build=$root/build
venv=$root/.venv

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# fail CODE MESSAGE: exits with mnist-train's exit codes (2: usage or setup, 1: other errors).
fail() {
  say "$2"
  exit "$1"
}

# wants_help ARGUMENT...
wants_help() { [[ " $* " == *" --help "* || " $* " == *" -h "* ]]; }

# Number of parallel compile jobs: one per core, but at most one per 2 GB of available memory.
build_jobs() {
  local cores memory_kb by_memory
  cores=$(nproc)
  memory_kb=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  by_memory=$((memory_kb / 2000000))
  if ((by_memory < 1)); then by_memory=1; fi
  echo $((cores < by_memory ? cores : by_memory))
}

# Number of parallel tests: more than the number of cores, because tests wait for processes, timeouts and disks.
test_jobs() {
  local jobs
  jobs=$(build_jobs)
  echo $((jobs + (jobs + 1) / 2))
}

# Whether this is an unpacked archive of scripts/bundle, which has programs but no sources.
is_bundle() { [[ -x $root/bin/mnist-train ]]; }

has_nvidia_driver() {
  [[ -e /proc/driver/nvidia/version || -e /dev/nvidiactl || -e /usr/lib/wsl/lib/libcuda.so.1 ]] ||
    ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'
}

# configure FOLDER [CMAKE OPTION...]
configure() {
  local folder=$1 options=() home
  shift
  if [[ -e $folder/CMakeCache.txt ]]; then
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt")
    # A build folder that was moved with its checkout still has the old path.
    if [[ $home != "$root" ]]; then options+=(--fresh -G Ninja); fi
  else
    options+=(-G Ninja)
  fi
  # Search for LibTorch again: a better match may be available since the last configure.
  cmake -S "$root" -B "$folder" "${options[@]}" -U MNIST_TRAIN_TORCH_FOLDER "$@" >&2 ||
    fail 2 "CMake could not configure $folder; see above"
}

# build FOLDER [TARGET...]
build() {
  local folder=$1 targets=()
  shift
  if (($#)); then targets=(--target "$@"); fi
  cmake --build "$folder" -j "$(build_jobs)" "${targets[@]}" >&2 || fail 1 "the build in $folder failed; see above"
}

# Warnings are errors only for compilers that the project is tested with.
warnings_as_errors() {
  case $(c++ -dumpversion) in
    12 | 13 | 14) echo ON ;;
    *) echo OFF ;;
  esac
}
