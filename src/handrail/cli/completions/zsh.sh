#compdef handrail
_handrail() {
  local -a commands options operands
  commands=(
@NAMES@
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case ${words[2]} in
@CASES@
  esac
  if [[ ${words[CURRENT]} == -* ]]; then
    _describe option options
  elif [[ ${words[2]} == (attach|logs|kill|wait|exec) ]]; then
    compadd -- ${(f)"$(handrail ps -q 2>/dev/null)"}
  elif (( CURRENT == 3 && $#operands )); then
    compadd -- $operands
  else
    _files
  fi
}
compdef _handrail handrail
