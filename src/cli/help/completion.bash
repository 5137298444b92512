# bash completion for mnist-train; made by `mnist-train completion bash`.
_mnist_train_offer() {
  mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -P "$prefix" "$@" -- "$current")
}
_mnist_train_words() { _mnist_train_offer -W "$1"; }
_mnist_train_keys() {
  compopt -o nospace 2>/dev/null
  _mnist_train_offer -S = -W "$1"
}
_mnist_train_folders() {
  compopt -o filenames 2>/dev/null
  _mnist_train_offer -d
}
_mnist_train_files() {
  local extension
  if (($# == 0)); then
    compopt -o filenames 2>/dev/null
    _mnist_train_offer -f
    return
  fi
  for extension; do _mnist_train_offer -f -X "!*.$extension"; done
  _mnist_train_folders
}
TABLES_mnist_train() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} key='' prefix=''
  COMPREPLY=()
  # The part of a word before "=", which is a separate word to bash unless COMP_WORDBREAKS lacks it.
  if [[ $current == '=' ]]; then
    key=$previous current='' previous=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $previous == '=' && -n $current ]]; then
    key=${COMP_WORDS[COMP_CWORD - 2]} previous=${COMP_WORDS[COMP_CWORD - 3]}
  elif [[ $current == *=* ]]; then
    key=${current%%=*} current=${current#*=}
    prefix=$key=
  fi
  if [[ $key == -* ]]; then previous=$key key=''; fi
  _mnist_train_complete "${COMP_WORDS[@]:1:COMP_CWORD - 1}"
}
complete -F _mnist_train mnist-train
