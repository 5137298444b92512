# shellcheck shell=bash
# Common functions of scripts/package and scripts/bundle: libraries to pack, and system requirements. Sourced after
# common.sh.

# Not packed: libraries of PyTorch's and DALI's wheels, and the C and C++ runtime, which every system has.
not_packed='^lib(c10|torch|cudart|nccl|gomp|dali)|^(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|ld-linux.*)\.so'

require_build() {
  [[ -e $build/CMakeCache.txt ]] || fail 2 "$build is not configured; run scripts/setup first"
  build "$build" "$@"
}

# version_of NAME: prints the version that `mnist-train --version` gives for NAME, such as 2.11.0 for LibTorch.
version_of() { "$build/bin/mnist-train" --version | grep -oP "(^|, )$1 \K[^, ]+"; }

# copy_libraries FOLDER PROGRAM...: copies the shared libraries that the programs need, directly or indirectly, including
# libwebp, which they load when they read the first WebP image.
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

# set_rpath RPATH FILE...: sets the library search path of executables and modules.
set_rpath() { cmake -D RPATH="$1" -P "$root/scripts/lib/cmake/set_rpath.cmake" -- "${@:2}" >/dev/null; }

# newest_symbols PREFIX FILE...: prints the highest system symbol version that the files need, such as GLIBC_2.35.
newest_symbols() { objdump -T "${@:2}" | grep -oE "\b$1_[0-9.]+" | sort -Vu | tail -1; }
