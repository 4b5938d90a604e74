rm -f "$oa_dir/forge-credential" "$oa_dir/gitconfig" 2>/dev/null
#include process
#include kill
#include wrapper_last
#include tombstone
case ${HOME:-} in /*) ;; *) exit 1 ;; esac

[ -d "$oa_dir" ] || oa_tombstone || exit 1
oa_removed=0
if oa_end "$grace" && oa_end_wrapper; then
  # A tombstone stays: it guards against a dispatch that is still on its way.
  [ ! -d "$oa_dir" ] || rm -rf "$oa_dir" 2>/dev/null
  [ -d "$oa_dir" ] || oa_removed=1
fi
printf '\nOA_REMOVED=%s\n' "$oa_removed"
