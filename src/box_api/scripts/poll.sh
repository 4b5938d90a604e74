#include process
#include log
# A home that is not there (not mounted yet) says nothing about the run.
case ${HOME:-} in /*) [ -d "$HOME" ] || exit 1 ;; *) exit 1 ;; esac

if [ ! -d "$oa_dir" ]; then
  printf '\nOA_PRESENT=0\n'
  exit 0
fi

# True when $1 was last changed 60 seconds ago or earlier.
oa_old() {
  oa_changed=$(stat -c %Y "$1" 2>/dev/null) && [ "$(($(date +%s) - oa_changed))" -ge 60 ]
}

# Nobody may start what has not started after 60 seconds: the free lock is taken.
oa_give_up() {
  mkdir "$oa_dir/launch" 2>/dev/null && mkdir "$oa_dir/launch/never" && oa_never=1
}

# Alive, exit, size, data, in this order: what ends in between is seen as ended with all its output.
oa_alive=0 oa_never= oa_restarted=
if [ -d "$oa_dir/launch/never" ]; then
  oa_never=1
elif [ -e "$oa_dir/pid" ]; then
  oa_find_wrapper && oa_alive=1
elif [ -d "$oa_dir/launch" ]; then
  oa_old "$oa_dir/launch" || oa_alive=1
elif ! oa_old "$oa_dir" || ! oa_give_up; then
  oa_alive=1
fi
oa_read_exit
oa_killed=
[ -n "$oa_exit" ] && [ -e "$oa_dir/kill-requested" ] && oa_killed=1

printf '\nOA_PRESENT=1\n'
oa_log
[ -z "$oa_exit" ] || printf 'OA_EXIT=%s\n' "$oa_exit"
[ -z "$oa_killed" ] || echo OA_KILLED=1
[ -z "$oa_never" ] || echo OA_NEVER_STARTED=1
[ -z "$oa_restarted" ] || echo OA_RESTARTED=1
printf 'OA_ALIVE=%s\n' "$oa_alive"
