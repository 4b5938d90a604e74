# Lets the wrapper record the exit and go; one that hangs is killed.
oa_end_wrapper() {
  oa_clock
  oa_wait_until=$((oa_now + 3))
  while oa_find_wrapper; do
    oa_clock
    [ "$oa_now" -le "$((oa_wait_until + 3))" ] || return 1
    kill -CONT "$oa_wrapper" 2>/dev/null
    [ "$oa_now" -le "$oa_wait_until" ] || kill -KILL "$oa_wrapper" 2>/dev/null
    sleep 0.1 2>/dev/null || sleep 1
  done
  return 0
}
