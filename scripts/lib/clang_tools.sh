# shellcheck shell=bash
# The clang tools, of one version on every machine: others have other opinions. Sourced after common.sh.

clang_version=14

# clang_tool NAME: its path. Ends the script as skipped where it is not there in that version.
clang_tool() {
  local candidate
  for candidate in "$1-$clang_version" "$1"; do
    if "$candidate" --version 2>/dev/null | grep -q "version $clang_version\\."; then
      command -v "$candidate"
      return
    fi
  done
  say "SKIPPED: no $1 $clang_version (scripts/test installs it)"
  exit 77
}
