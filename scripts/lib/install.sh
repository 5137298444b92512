# shellcheck shell=bash
# Installs Debian packages, and LibTorch and the test tools as pinned wheels in the repository's .venv.
# Sourced after common.sh.

# libfmt-dev is a dependency of libspdlog-dev; it is listed because its headers are also used directly.
packages=(
  ca-certificates ccache cmake g++ git lld ninja-build python3 python3-venv
  catch2 libcli11-dev libcurl4-openssl-dev libfmt-dev libgloo-dev libjpeg-dev liblmdb-dev libmd-dev libpng-dev
  libprotozero-dev libspdlog-dev libwebp-dev libxxhash-dev nlohmann-json3-dev zlib1g-dev
)

# Version 19 is in Debian 12, Debian 13 and Ubuntu 24.04, and parses the headers of GCC 12 to 14.
test_packages=(clang-tidy-19 debootstrap faketime iproute2 libclang-19-dev llvm-19-dev shellcheck strace)

fuzz_packages=(clang-19 libclang-rt-19-dev)

integration_packages=(iptables mpich munge openclipart-png openmpi-bin slurm-wlm)

# Ubuntu has browsers only as snaps; tests that need one are skipped there.
browser_packages() {
  if [[ $(. /etc/os-release && echo "$ID") == debian ]]; then printf '%s\n' chromium fonts-dejavu-core; fi
}

missing_packages() {
  local package
  for package in "$@"; do
    if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
      echo "$package"
    fi
  done
}

# as_root COMMAND...: runs the command as root, with sudo if necessary.
as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    sudo "$@"
  fi
}

can_be_root() {
  ((EUID == 0)) || sudo -n true 2>/dev/null || { [[ -t 0 && -t 2 ]] && command -v sudo >/dev/null; }
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null >/dev/null
}

# install_packages PACKAGE...: installs missing packages; does not access the network if none are missing.
install_packages() {
  command -v dpkg-query >/dev/null ||
    fail 2 "this system has no dpkg; install the equivalents of these Debian packages: $*"
  local missing
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then return; fi
  can_be_root ||
    fail 2 "missing packages, and no root access to install them: ${missing[*]}
  as root: apt-get install ${missing[*]}"
  say "installing packages: ${missing[*]}"
  apt update || say "apt-get update failed; continuing with the existing package lists"
  apt install -y --no-install-recommends "${missing[@]}" || {
    mapfile -t missing < <(missing_packages "$@")
    fail 2 "apt-get could not install: ${missing[*]}
  Debian 12 and 13 have them in main, Ubuntu 24.04 in main and universe (add-apt-repository universe)"
  }
}

# Wheels

requirements=$root/third_party/python

# Prints the folder of a LibTorch that scripts/setup did not install (CMAKE_PREFIX_PATH or the active Python), or nothing.
existing_torch() {
  local folder
  folder=$(cmake -P "$root/third_party/find_libtorch.cmake" | sed '/^-- /d') || exit 2
  if [[ $folder != "$venv"/* ]]; then echo "$folder"; fi
}

# python_beside FOLDER: prints the Python that can import the `torch` in FOLDER, for tests that compare with PyTorch.
python_beside() {
  local torch_folder=$1 prefix
  prefix=$(cd "$torch_folder/../../../.." 2>/dev/null && pwd -P) || return 0
  if [[ -x $prefix/bin/python3 && $torch_folder == */site-packages/torch ]]; then
    echo "$prefix/bin/python3"
  fi
}

# make_venv PYTHON: creates .venv unless it exists and works.
make_venv() {
  if "$venv/bin/python3" -m pip --version >/dev/null 2>&1; then return; fi
  say "creating a virtual environment in .venv"
  rm -rf "$venv/.mnist-train"  # after a system upgrade, the new Python does not find the wheels of the old one
  "$1" -m venv "$venv" >&2 ||
    fail 2 "$1 -m venv $venv failed; if .venv is left from an earlier attempt, remove it and retry"
}

# install_wheels NAME [PIP OPTION...]: installs third_party/python/NAME.txt. A stamp file holds the installed list; until
# the list changes, this is a no-op without network access.
install_wheels() {
  local list=$requirements/$1.txt stamp=$venv/.mnist-train/$1
  if cmp -s "$list" "$stamp"; then return; fi
  say "installing into .venv: $(sed '/^#/d' "$list" | tr '\n' ' ')"
  "$venv/bin/python3" -m pip install --quiet --disable-pip-version-check --no-input \
    --progress-bar off "${@:2}" -r "$list" >&2 ||
    fail 2 "pip could not install the wheels of $list; see above"
  mkdir -p "$(dirname "$stamp")"
  cp "$list" "$stamp"
}

# set_up_torch cpu|cuda: installs LibTorch unless it is already available.
set_up_torch() {
  local set=$1 existing
  existing=$(existing_torch)
  if [[ -n $existing ]]; then
    say "LibTorch: $existing"
    return
  fi
  make_venv "$(system_python)"
  if [[ $set == cuda ]]; then
    install_wheels torch-cuda
  elif [[ ! -e $venv/.mnist-train/torch-cuda ]]; then  # which includes the CPU packages
    install_wheels torch-cpu --no-deps
  fi
}

# set_up_dali: installs NVIDIA DALI, independently of LibTorch.
set_up_dali() {
  make_venv "$(system_python)"
  install_wheels dali --no-deps
}

# set_up_test_tools: installs pytest in a Python that can import the torch in use.
set_up_test_tools() {
  local existing python=''
  existing=$(existing_torch)
  if [[ -n $existing ]]; then python=$(python_beside "$existing"); fi
  make_venv "${python:-$(system_python)}"
  install_wheels test-tools
  install_wheels test-torchvision --no-deps  # torch is already available
  if [[ -n $python ]]; then
    # Lets the tests' Python import that torch.
    dirname "$existing" >"$("$venv/bin/python3" -c 'import site; print(site.getsitepackages()[0])')/existing-torch.pth"
  fi
}

# set_up_integration_tools: installs wandb, Flyte and the other tools of the integration tests in a separate venv.
set_up_integration_tools() {
  local venv=$venv/integrations
  make_venv "$(system_python)"
  install_wheels integrations
  install_wheels integrations-efficientnet --no-deps
}

# set_up_jax: installs JAX for the benchmark in a separate venv.
set_up_jax() {
  local venv=$venv/jax
  make_venv "$(system_python)"
  install_wheels jax
}

# Prints the distribution's Python, for which python3-venv is installed.
system_python() {
  if [[ -x /usr/bin/python3 ]]; then echo /usr/bin/python3; else echo python3; fi
}
