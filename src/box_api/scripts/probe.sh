#include tombstone
case ${HOME:-} in /*) ;; *) exit 1 ;; esac

[ -d "$oa_dir" ] || oa_tombstone || exit 1
if [ -d "$oa_dir" ]; then
  oa_pid=
  [ -f "$oa_dir/pid" ] && read -r oa_pid oa_rest <"$oa_dir/pid"
  printf '\nOA_PRESENT=1\n'
  case $oa_pid in '' | *[!0-9]*) ;; *) printf 'OA_PID=%s\n' "$oa_pid" ;; esac
else
  printf '\nOA_PRESENT=0\n'
fi
