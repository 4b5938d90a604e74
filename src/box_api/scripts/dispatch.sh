# Starts the run once. The directory is the lock: who makes it starts the wrapper, everybody else only says what is there.
oa_mask=$(umask)
umask 077

# Shuts the launch lock first, so that what was refused can't start later.
oa_refuse() {
  rm -f "$oa_dir/forge-credential" "$oa_dir/gitconfig" 2>/dev/null
  mkdir "$oa_dir/launch" 2>/dev/null && mkdir "$oa_dir/launch/never" 2>/dev/null
  printf '\nOA_REFUSED=%s\n' "$1"
  exit 74
}

case ${HOME:-} in /*) ;; *) oa_refuse home ;; esac
mkdir -p "${oa_dir%/*}" 2>/dev/null
if ! mkdir "$oa_dir" 2>/dev/null; then
  if [ -d "$oa_dir" ]; then printf '\nOPENAGENTS_RUN_EXISTS\n'; exit 73; fi
  if [ -e "$oa_dir" ]; then printf '\nOA_TOMBSTONE=1\n'; exit 73; fi
  oa_refuse directory
fi

for oa_tool in base64 cat date env grep head ls mv nohup rm setsid sh sleep stat tail tr; do
  command -v "$oa_tool" >/dev/null 2>&1 || oa_refuse "$oa_tool"
done
[ -r /proc/self/stat ] || oa_refuse proc

oa_cwd=$(printf %s "$oa_cwd" | base64 -d && echo .) || oa_refuse cwd
oa_cwd=${oa_cwd%.}
case $oa_cwd in '' | /*) ;; *) oa_cwd=$HOME/$oa_cwd ;; esac
[ -z "$oa_cwd" ] || (cd "$oa_cwd") >/dev/null 2>&1 || oa_refuse cwd

{ printf %s "$oa_script" | base64 -d >"$oa_dir/script.sh"; } 2>/dev/null || oa_refuse script
set -- $(ls -lnd "$oa_dir/script.sh")
[ "${5:-}" = "$oa_script_bytes" ] || oa_refuse script
{ printf '' >>"$oa_dir/output.log"; } 2>/dev/null || oa_refuse log

# git's own file of passwords, and a configuration that adds it to the box's own. The wrapper removes both.
if [ -n "$oa_credential" ]; then
  case $oa_dir in *[\'\"\\]*) oa_refuse credential ;; esac
  oa_git_url=$(printf %s "$oa_git_url" | base64 -d)
  {
    printf %s "$oa_credential" | base64 -d >"$oa_dir/forge-credential" &&
      printf '[include]\n\tpath = "%s"\n' "${GIT_CONFIG_GLOBAL:-${XDG_CONFIG_HOME:-$HOME/.config}/git/config}" >"$oa_dir/gitconfig" &&
      { [ -n "${GIT_CONFIG_GLOBAL:-}" ] || printf '[include]\n\tpath = "%s"\n' "$HOME/.gitconfig" >>"$oa_dir/gitconfig"; } &&
      printf '[credential "%s"]\n\thelper =\n\thelper = "store --file=\047%s/forge-credential\047"\n' \
        "$oa_git_url" "$oa_dir" >>"$oa_dir/gitconfig"
  } 2>/dev/null || oa_refuse credential
fi

# By stdin the wrapper's text is in no file and no list of processes.
nohup setsid sh -s -- "$oa_dir" "$oa_cwd" "$oa_mask" >/dev/null 2>&1 <<'BOXRUN_WRAPPER' &
#include wrapper
BOXRUN_WRAPPER

# The wrapper knows its own pid best.
oa_tries=0
while [ ! -f "$oa_dir/pid" ]; do
  [ ! -d "$oa_dir/launch/never" ] || exit 75
  oa_tries=$((oa_tries + 1))
  if [ "$oa_tries" -gt 160 ]; then
    mkdir "$oa_dir/launch" 2>/dev/null && mkdir "$oa_dir/launch/never" && oa_refuse start
    exit 75
  fi
  sleep 0.05 2>/dev/null || sleep 1
done
read -r oa_pid oa_rest <"$oa_dir/pid"
printf '\n%s\n' "$oa_pid"
