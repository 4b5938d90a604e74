# A file where the run directory would be, made only if nothing is there: a dispatch still on its way starts nothing.
oa_tombstone() {
  umask 077
  mkdir -p "${oa_dir%/*}" 2>/dev/null
  (set -C; : >"$oa_dir") 2>/dev/null
  [ -e "$oa_dir" ]
}
