# Reads /proc/$1/stat; false when there is no such process or it is dead. The name in it may hold blanks, `)` and newlines.
oa_stat() {
  oa_text= oa_session=
  while IFS= read -r oa_line || [ -n "$oa_line" ]; do
    oa_text="$oa_text $oa_line"
  done 2>/dev/null <"/proc/$1/stat"
  set -- ${oa_text##*) }
  [ "$#" -ge 20 ] || return 1
  oa_parent=$2 oa_session=$4 oa_start=${20}
  case $1 in Z | X | x) return 1 ;; esac
}

oa_boot_id() {
  cat "${BOXRUN_BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}" 2>/dev/null
}

# True while the wrapper lives: the process that the pid file means, not one that reuses its number. An unknown boot id is
# an unchanged one.
oa_find_wrapper() {
  oa_wrapper= oa_restarted= oa_pid= oa_since= oa_boot=
  [ -f "$oa_dir/pid" ] && read -r oa_pid oa_since oa_boot <"$oa_dir/pid"
  oa_now_boot=$(oa_boot_id)
  if [ -n "$oa_boot" ] && [ -n "$oa_now_boot" ] && [ "$oa_boot" != "$oa_now_boot" ]; then
    oa_restarted=1
    return 1
  fi
  case $oa_pid in '' | *[!0-9]* | 0 | 1) return 1 ;; esac
  oa_stat "$oa_pid" && [ "$oa_start" = "$oa_since" ] && oa_wrapper=$oa_pid
}

# The recorded exit status, 0 to 255; false when there is none or it makes no sense. Whatever was put there is read no
# further than a status goes.
oa_read_exit() {
  oa_exit=
  [ ! -f "$oa_dir/exit-code" ] || { oa_exit=$(head -c 4 "$oa_dir/exit-code"); } 2>/dev/null
  case $oa_exit in
    [0-9] | [1-9][0-9] | [1-9][0-9][0-9]) [ "$oa_exit" -le 255 ] && return 0 ;;
  esac
  oa_exit=
  return 1
}
