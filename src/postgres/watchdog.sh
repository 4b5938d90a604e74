# Runs a program that must not outlive the process which started it.
#
# $1 is a folder to remove at the end (or empty), the rest is the program's command line. Standard input is a pipe held by
# the starting process alone: whatever way that process ends, the pipe ends, and the program is stopped. Standard output is
# handed to the program and closed here, so that its end tells the starting process that every process of the program is gone.

trap '' HUP INT TERM
scrap=$1
shift
"$@" </dev/null &
program=$!
exec >/dev/null

while read -r order; do
    case $order in
    keep) scrap= ;;
    kill) kill -KILL "$program" ;;
    esac
done

# PostgreSQL takes SIGINT as "fast shutdown". One that arrives before its handler is installed is lost, so it is repeated;
# a shutdown that hangs for half a minute is cut short by SIGQUIT ("immediate shutdown").
(
    tries=0
    while kill -0 "$program"; do
        if [ "$tries" -lt 300 ]; then kill -INT "$program"; else kill -QUIT "$program"; fi
        tries=$((tries + 1))
        sleep 0.1 || sleep 1
    done
) 2>/dev/null &
reminder=$!
wait "$program"
status=$?
kill -KILL "$reminder" 2>/dev/null
[ -z "$scrap" ] || rm -rf "$scrap"
exit "$status"
