# The log from offset on, at most max_bytes; what is no regular file reads as empty and is not opened.
oa_log() {
  oa_size=0
  if [ -f "$oa_dir/output.log" ] && [ ! -L "$oa_dir/output.log" ]; then
    set -- $(ls -lnd "$oa_dir/output.log")
    oa_size=${5:-0}
  fi
  oa_bytes=$((oa_size - offset))
  [ "$oa_bytes" -le "$max_bytes" ] || oa_bytes=$max_bytes
  printf 'OA_FROM=%s\nOA_SIZE=%s\nOA_DATA=' "$offset" "$oa_size"
  if [ "$oa_bytes" -gt 0 ]; then
    tail -c "+$((offset + 1))" "$oa_dir/output.log" | head -c "$oa_bytes" | base64 | tr -d '\n'
  fi
  echo
}
