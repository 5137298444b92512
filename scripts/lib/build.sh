# shellcheck shell=bash
# Configuring and building. Sourced after common.sh.

# configure FOLDER [CMAKE OPTION...]
configure() {
  local folder=$1 options=() home
  shift
  if [[ -e $folder/CMakeCache.txt ]]; then
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt")
    # A build folder that moved with its checkout remembers the old place.
    if [[ $home != "$root" ]]; then options+=(--fresh -G Ninja); fi
  else
    options+=(-G Ninja)
  fi
  # LibTorch is looked for anew: what the earlier run chose may not be the first choice any more.
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

# Warnings are errors with the compilers that the project is tested with, and remarks with others.
warnings_as_errors() {
  case $(c++ -dumpversion) in
    12 | 13) echo ON ;;
    *) echo OFF ;;
  esac
}
