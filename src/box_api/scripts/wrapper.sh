#include process
#include kill

# Ends the command when no worker is left to do it. In small steps, for a sleep must not outlive the run for long.
oa_watch() {
  while [ "$oa_watchdog" -gt 0 ]; do
    oa_step=$((oa_watchdog < 5 ? oa_watchdog : 5))
    sleep "$oa_step"
    oa_watchdog=$((oa_watchdog - oa_step))
    [ -d "$oa_dir" ] && [ ! -e "$oa_dir/exit-code" ] && [ ! -e "$oa_dir/kill-requested" ] || return 0
  done
  oa_request_kill && oa_end 5
}

# $1 file, the rest its words; never seen half written.
oa_record() {
  oa_file=$1
  shift
  printf '%s\n' "$*" >"$oa_file.tmp" && mv -f "$oa_file.tmp" "$oa_file"
}

# One function, so that the text is read whole before any of it runs.
oa_main() {
  oa_dir=$1 oa_cwd=$2 oa_mask=$3
  mkdir "$oa_dir/launch" || exit 0
  # Handlers, not '': the command would inherit that.
  trap : TERM USR1 USR2 ALRM
  oa_sh=$(command -v sh)
  oa_stat "$$"
  if ! oa_record "$oa_dir/pid" "$$" "$oa_start" "$(oa_boot_id)"; then
    rmdir "$oa_dir/launch"
    exit 1
  fi
  if [ -e "$oa_dir/kill-requested" ]; then
    oa_status=143
  else
    oa_watch </dev/null &
    set --
#environment
    # In the foreground: a signal to the wrapper can't be taken for the command's exit.
    (
      read -r oa_self oa_rest </proc/self/stat && oa_stat "$oa_self" &&
        oa_record "$oa_dir/command" "$oa_self" "$oa_start" || exit 126
      [ -z "$oa_cwd" ] || cd "$oa_cwd" || exit 126
      umask "$oa_mask"
#secrets
      unset oa_word
      exec setsid env -- "$@" "BOXRUN_RUN_ID=$oa_run" "$oa_sh" "$oa_dir/script.sh"
    ) </dev/null >>"$oa_dir/output.log" 2>&1
    oa_status=$?
  fi
  rm -f "$oa_dir/forge-credential" "$oa_dir/gitconfig"
  # A full disk may have room again; a directory that is gone won't come back.
  oa_tries=0
  until oa_record "$oa_dir/exit-code" "$oa_status" || [ ! -d "$oa_dir" ] || [ "$oa_tries" -ge 3600 ]; do
    oa_tries=$((oa_tries + 1))
    sleep 1
  done
  # The watcher and its sleep are in the wrapper's group, the command is not.
  kill -KILL -"$$"
}

oa_main "$@"
