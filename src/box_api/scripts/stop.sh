rm -f "$oa_dir/forge-credential" "$oa_dir/gitconfig" 2>/dev/null
#include process
#include kill
#include wrapper_last
#include tombstone
#include log
case ${HOME:-} in /*) ;; *) exit 1 ;; esac
umask 077

[ -d "$oa_dir" ] || oa_tombstone || exit 1
if [ ! -d "$oa_dir" ]; then
  if oa_end "$grace"; then printf '\nOA_PRESENT=0\n'; else printf '\nOA_CANCELLED=0\n'; fi
  exit 0
fi

if oa_request_kill; then
  mkdir "$oa_dir/launch" 2>/dev/null && mkdir "$oa_dir/launch/never"
  if oa_end "$grace" && oa_end_wrapper; then
    oa_cancelled=1
    oa_read_exit
  else
    oa_cancelled=0 oa_exit=
  fi
else
  oa_cancelled=0
fi

printf '\nOA_CANCELLED=%s\n' "$oa_cancelled"
[ -z "$oa_exit" ] || printf 'OA_EXIT=%s\n' "$oa_exit"
oa_log
