# Notes the session of a process that is the run's: the run made it, so whoever is in it is the run's as well. Never one
# whose number means something else to kill, nor our own.
oa_adopt() {
  case $oa_session in '' | 0 | 1 | "$oa_own_session") return ;; esac
  case $oa_sessions in *" $oa_session "*) ;; *) oa_sessions="$oa_sessions$oa_session " ;; esac
}

# Whether process oa_p, as oa_look sees it, is part of the run. The wrapper's own session is not: it goes last, by itself.
oa_belongs() {
  case $oa_p in 1 | "$$") return 1 ;; esac
  case $oa_seen in *" $oa_p:$oa_start "*) return 0 ;; esac
  if [ "$oa_p:$oa_start" = "$oa_command" ]; then
    [ "$oa_session" != "$oa_p" ] || oa_adopt
    return 0
  fi
  if [ -n "$oa_wrapper" ]; then
    [ "$oa_session" != "$oa_wrapper" ] || return 1
    [ "$oa_parent" != "$oa_wrapper" ] || return 0
  fi
  case $oa_marked in
    *" $oa_p "*)
      oa_adopt
      return 0
      ;;
  esac
  case $oa_sessions in *" $oa_session "*) return 0 ;; esac
  case $oa_found in *" $oa_parent:"*) return 0 ;; esac
  return 1
}

# Lists in oa_found, as pid:start, what is left of the run: the command, marked processes, the sessions of these, children,
# and whatever an earlier look of this script found.
oa_look() {
  oa_find_wrapper
  oa_command=none
  if [ -z "$oa_restarted" ] && [ -f "$oa_dir/command" ]; then
    read -r oa_p oa_start <"$oa_dir/command" && oa_command=$oa_p:$oa_start
  fi
  oa_marked=" $(grep -lsF "BOXRUN_RUN_ID=$oa_run" /proc/[0-9]*/environ 2>/dev/null | tr -c 0-9 ' ') "
  # At once: one that lives for an instant only is gone when the table comes to it.
  for oa_p in $oa_marked; do
    oa_stat "$oa_p" && [ "$oa_session" != "$oa_wrapper" ] && oa_adopt
  done
  oa_table= oa_dead=' '
  for oa_p in /proc/[0-9]*; do
    oa_p=${oa_p#/proc/}
    if oa_stat "$oa_p"; then
      oa_table="$oa_table $oa_p:$oa_parent:$oa_session:$oa_start"
    else
      oa_dead="$oa_dead$oa_session "
    fi
  done
  oa_found=' ' oa_before=
  until [ "$oa_found" = "$oa_before" ]; do
    oa_before=$oa_found
    for oa_row in $oa_table; do
      oa_p=${oa_row%%:*} oa_start=${oa_row##*:} oa_row=${oa_row#*:}
      oa_parent=${oa_row%%:*} oa_row=${oa_row#*:}
      oa_session=${oa_row%:*}
      case $oa_found in *" $oa_p:$oa_start "*) continue ;; esac
      oa_belongs && oa_found="$oa_found$oa_p:$oa_start "
    done
  done
  oa_seen=$oa_seen${oa_found# }
}

# Signal $1 to what was found, each looked at once more just before; $2 lists what has had it already.
oa_signal() {
  for oa_row in $oa_found; do
    case $2 in *" $oa_row "*) continue ;; esac
    oa_stat "${oa_row%:*}" && [ "$oa_start" = "${oa_row#*:}" ] || continue
    kill -"$1" "${oa_row%:*}" 2>/dev/null
    kill -CONT "${oa_row%:*}" 2>/dev/null
  done
}

# Whether there is somebody whom the look missed, because each is gone before one comes to it and leaves a child. The dead
# whom nobody reaps keep a session too, but are seen.
oa_hidden() {
  case $oa_marked in *[0-9]*) return 0 ;; esac
  for oa_session in $oa_sessions; do
    case $oa_dead in *" $oa_session "*) continue ;; esac
    kill -0 -"$oa_session" 2>/dev/null && return 0
  done
  return 1
}

# Whole sessions at once: nobody among them gets to fork. Not reached: a chain of processes in a session of its own, each of
# which is gone before a look comes to it.
oa_kill_sessions() {
  for oa_session in $oa_sessions; do
    kill -KILL -"$oa_session" 2>/dev/null
  done
}

# Puts the request on record, before any signal; false when the run has ended by itself. An exit that came in between takes
# the request back.
oa_request_kill() {
  if ! oa_read_exit && [ ! -e "$oa_dir/kill-requested" ]; then
    printf '' 2>/dev/null >"$oa_dir/kill-requested"
    ! oa_read_exit || rm -f "$oa_dir/kill-requested"
  fi
  [ -z "$oa_exit" ] || [ -e "$oa_dir/kill-requested" ]
}

oa_clock() {
  read -r oa_now oa_rest </proc/uptime
  oa_now=${oa_now%.*}
}

# TERM, a grace period of $1 seconds, then KILL until two looks in a row find nothing; false when something will not die.
oa_end() {
  oa_seen=' ' oa_termed=' ' oa_sessions=' ' oa_empty=0 oa_term_until=
  oa_stat "$$"
  oa_own_session=$oa_session
  while :; do
    oa_look
    oa_clock
    if [ "$oa_found" = ' ' ] && ! oa_starting && ! oa_hidden; then
      oa_empty=$((oa_empty + 1))
      [ "$oa_empty" -lt 2 ] || return 0
    else
      oa_empty=0
      # The clock counts whole seconds: one more, so that the grace is never shorter than promised.
      : "${oa_term_until:=$((oa_now + $1 + 1))}"
      [ "$oa_now" -le "$((oa_term_until + 10))" ] || return 1
      if [ "$oa_now" -lt "$oa_term_until" ]; then
        oa_signal TERM "$oa_termed"
        oa_termed=$oa_termed${oa_found# }
      else
        oa_signal KILL ''
        oa_kill_sessions
      fi
    fi
    sleep 0.1 2>/dev/null || sleep 1
  done
}

# A living wrapper that has recorded neither its command nor an exit is about to start one.
oa_starting() {
  [ -n "$oa_wrapper" ] && [ ! -e "$oa_dir/command" ] && [ ! -e "$oa_dir/exit-code" ]
}
