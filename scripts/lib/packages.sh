# shellcheck shell=bash
# Debian's packages: which are missing, and their installation. Sourced after common.sh.

# libfmt-dev comes with libspdlog-dev and is named because its headers are used on their own.
packages=(
  ca-certificates ccache cmake g++ git mold ninja-build python3 python3-venv
  catch2 libcli11-dev libcurl4-openssl-dev libfmt-dev libgloo-dev libjpeg-dev liblmdb-dev libmd-dev libpng-dev
  libprotozero-dev libspdlog-dev libxxhash-dev nlohmann-json3-dev zlib1g-dev
)

test_packages=(clang-format-14 clang-tidy-14 faketime groff-base iproute2 shellcheck strace zsh)

fuzz_packages=(clang-14 libclang-rt-14-dev)

integration_packages=(iptables munge openmpi-bin slurm-wlm)

# Ubuntu packages no browser but a snap; the tests that need one are skipped there.
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

# as_root COMMAND...: as root, by sudo when that needs no password or there is someone to type it.
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

# install_packages PACKAGE...: what is missing of them; nothing is asked of the network when all are there.
install_packages() {
  command -v dpkg-query >/dev/null ||
    fail 2 "this system has no dpkg; install what Debian calls: $*"
  local missing
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then return; fi
  can_be_root ||
    fail 2 "missing packages, and neither root nor sudo to install them: ${missing[*]}
  as root: apt-get install ${missing[*]}"
  say "installing packages: ${missing[*]}"
  apt update || say "apt-get update failed in part; going on with what is known"
  apt install -y --no-install-recommends "${missing[@]}" || {
    mapfile -t missing < <(missing_packages "$@")
    fail 2 "apt-get could not install: ${missing[*]}
  Debian 12 has them in main, Ubuntu 24.04 in main and universe (add-apt-repository universe)"
  }
}
