_mnist_train_set() {
  case $key in
    '') _mnist_train_keys KEYS ;;
VALUES  esac
}
_mnist_train_complete() {
  local command='' flags='' word
  for word; do
    case $word in
      COMMANDS) command=$word && break ;;
    esac
  done
  if [[ $# == 0 && $current != -* && $previous != -* ]]; then
    _mnist_train_words 'NAMES'
    return
  fi
  case ${command:-train} in
FLAGS  esac
  _mnist_train_words "$flags"
}
