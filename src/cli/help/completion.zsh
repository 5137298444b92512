#compdef mnist-train
# zsh completion for mnist-train; made by `mnist-train completion zsh`.
_mnist_train_words() { compadd -- ${=1}; }
_mnist_train_keys() { compadd -S = -- ${=1}; }
_mnist_train_folders() { _files -/; }
_mnist_train_files() {
  local -a globs=("*."$^@)
  if (($# == 0)); then _files; else _files -g "$globs *(-/)"; fi
}
TABLES_mnist_train() {
  local current=$words[CURRENT] previous=$words[CURRENT-1] key=''
  if [[ $current == -*=* ]]; then
    previous=${current%%=*} current=${current#*=}
    compset -P 1 '*='
  fi
  if [[ $previous == --set && $current == *=* ]]; then
    key=${current%%=*}
    compset -P 1 '*='
  fi
  _mnist_train_complete "${(@)words[2,CURRENT-1]}"
}
if [[ $funcstack[1] == _mnist-train ]]; then
  _mnist_train "$@"
else
  compdef _mnist_train mnist-train
fi
