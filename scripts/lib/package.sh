# shellcheck shell=bash
# What scripts/package and scripts/bundle share: which libraries are packed, and what a system must have. Sourced after
# common.sh.

# The libraries of PyTorch's and DALI's wheels, and the C and C++ run-time, which every system has.
not_packed='^lib(c10|torch|cudart|nccl|gomp|dali)|^(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|ld-linux.*)\.so'

require_build() {
  [[ -e $build/CMakeCache.txt ]] || fail 2 "nothing is configured in $build: run scripts/setup first"
  build "$build" "$@"
}

# built_with NAME: what `mnist-train --version` says of it, such as 2.11.0 for LibTorch.
built_with() { "$build/bin/mnist-train" --version | grep -oP "(^|, )$1 \K[^, ]+"; }

# copy_libraries FOLDER PROGRAM...: the shared libraries that the programs need, and that those need, and libwebp, which they
# load when they read the first such picture.
copy_libraries() {
  local folder=$1 name file queue
  local -A found=()
  shift
  cp -L "$(c++ -print-file-name=libwebp.so.7)" "$folder/libwebp.so.7"
  set -- "$@" "$folder/libwebp.so.7"
  queue=("$@")
  while read -r name file; do found[$name]=$file; done < <(ldd "$@" | awk '$2 == "=>" && $3 ~ "^/" {print $1, $3}')
  while ((${#queue[@]})); do
    mapfile -t queue < <(objdump -p "${queue[@]}" | awk '$1 == "NEEDED" {print $2}' | sort -u | grep -vE "$not_packed")
    for name in "${!queue[@]}"; do
      file=$folder/${queue[name]}
      if [[ -e $file ]]; then
        unset "queue[name]"
      else
        cp -L "${found[${queue[name]}]}" "$file"
        queue[name]=$file
      fi
    done
  done
}

# set_rpath RPATH FILE...: where an executable or a module looks for libraries.
set_rpath() { cmake -D RPATH="$1" -P "$root/scripts/lib/cmake/set_rpath.cmake" -- "${@:2}" >/dev/null; }

# newest_symbols PREFIX FILE...: the highest version of the system's symbols, such as GLIBC_2.35, that the files need.
newest_symbols() { objdump -T "${@:2}" | grep -oE "\b$1_[0-9.]+" | sort -Vu | tail -1; }
