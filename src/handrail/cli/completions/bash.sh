_handrail() {
  local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} options='' operands=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '@NAMES@ --help --version' -- "$current"))
    return
  fi
  if [[ " ${COMP_WORDS[*]:2:COMP_CWORD-2} " == *" -- "* ]]; then
    COMPREPLY=($(compgen -c -f -- "$current"))
    return
  fi
  case $command in
@CASES@
  esac
  case $COMP_CWORD:$command:$current in
    *:-*) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;
    *:attach:*|*:logs:*|*:kill:*|*:wait:*|*:exec:*)
      COMPREPLY=($(compgen -W "$(handrail ps -q 2>/dev/null)" -- "$current")) ;;
    *:run:*|*:sandbox:*) COMPREPLY=($(compgen -c -f -- "$current")) ;;
    *)
      if [ "$COMP_CWORD" -eq 2 ] && [ -n "$operands" ]; then
        COMPREPLY=($(compgen -W "$operands" -- "$current"))
      else
        COMPREPLY=($(compgen -f -- "$current"))
      fi ;;
  esac
}
complete -F _handrail handrail
