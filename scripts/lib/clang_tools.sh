# shellcheck shell=bash
# The clang tools of one version, from .venv or the system. Sourced after common.sh.

clang_version=14

# clang_tool NAME: its path, empty when it is not there in that version.
clang_tool() {
  local candidate
  for candidate in "$venv/bin/$1" "$1-$clang_version" "$1"; do
    if "$candidate" --version 2>/dev/null | grep -q "version $clang_version\\."; then
      command -v "$candidate"
      return
    fi
  done
}

# require_clang_tool NAME: the same, but ends the script as skipped when there is none.
require_clang_tool() {
  local tool
  tool=$(clang_tool "$1")
  if [[ -z $tool ]]; then
    say "SKIPPED: no $1 $clang_version (scripts/test installs it)"
    exit 77
  fi
  echo "$tool"
}
