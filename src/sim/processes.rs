//! Finding and killing every process that a box started.
//!
//! Each script starts in a session of its own with a mark in its environment, and children inherit both. A process belongs
//! to a box when it carries the box's mark, is in a session with one that does, or descends from one that belongs; since
//! boxes make their sessions themselves, no stranger is in one. Not found: a process that cleared its environment, made a
//! session of its own and lost its parent. Without /proc (not Linux) only scripts being run are ended, by their group.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use uuid::Uuid;

use crate::ids::BoxId;

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// After so many looks, 5 s, what is left can't be killed.
const LOOKS_MAX: usize = 250;

/// What the processes of a box, or of all boxes of a root, have in their environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    value: String,
    whole: bool,
}

impl Mark {
    pub const VARIABLE: &'static str = "BOXRUN_SIM_BOX";

    pub fn of_box(root: &Path, id: &BoxId) -> Self {
        Self {
            value: format!("{}/{id}", root_name(root)),
            whole: true,
        }
    }

    pub fn of_root(root: &Path) -> Self {
        Self {
            value: format!("{}/", root_name(root)),
            whole: false,
        }
    }

    pub fn value(&self) -> &str {
        &self.value
    }

    fn is_in(&self, environment: &[u8]) -> bool {
        let prefix = format!("{}=", Self::VARIABLE);
        environment
            .split(|byte| *byte == 0)
            .filter_map(|line| line.strip_prefix(prefix.as_bytes()))
            .any(|value| {
                if self.whole {
                    value == self.value.as_bytes()
                } else {
                    value.starts_with(self.value.as_bytes())
                }
            })
    }
}

/// The same root, the same name, also in the next life of the simulator.
fn root_name(root: &Path) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, root.as_os_str().as_encoded_bytes())
        .simple()
        .to_string()
}

/// Kills until two looks in a row find nothing: a process in the middle of a fork or an exec is seen by one of them.
pub(super) async fn kill_marked(mark: Mark) {
    let mut empty_looks = 0;
    for _ in 0..LOOKS_MAX {
        let looked_for = mark.clone();
        let found = tokio::task::spawn_blocking(move || kill_once(&looked_for))
            .await
            .expect("a look at the processes does not panic");
        empty_looks = if found == 0 { empty_looks + 1 } else { 0 };
        if empty_looks == 2 {
            return;
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    tracing::error!(mark = mark.value(), "processes of a simulated box do not die");
}

fn kill_once(mark: &Mark) -> usize {
    let processes = all_processes(mark);
    let own_pid = i32::try_from(std::process::id()).unwrap_or_default();
    let victims = belonging(&processes, own_pid);
    for pid in &victims {
        if let Some(pid) = Pid::from_raw(*pid) {
            // Gone in between is as good.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    victims.len()
}

/// Whether this process lives and carries the mark.
pub(super) fn is_marked_alive(pid: u32, mark: &Mark) -> bool {
    let alive = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent_and_session(&stat).is_some());
    alive && fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| mark.is_in(&environment))
}

/// Kills the group that a script leads.
pub(super) fn kill_group(leader: u32) {
    if let Some(pid) = i32::try_from(leader).ok().and_then(Pid::from_raw)
        && kill_process_group(pid, Signal::KILL).is_err()
    {
        // It has not come to make its group yet.
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[derive(Debug, Clone, Copy)]
struct Process {
    pid: i32,
    parent: i32,
    session: i32,
    marked: bool,
}

/// The processes that belong to a box; never ourselves or init. A session of 0 is one that was made outside of a container.
fn belonging(processes: &[Process], own_pid: i32) -> Vec<i32> {
    let own = processes.iter().find(|process| process.pid == own_pid);
    let own_session = own.map_or(0, |process| process.session);
    let marked = processes.iter().filter(|process| process.marked);
    let sessions: HashSet<i32> = marked
        .clone()
        .map(|process| process.session)
        .filter(|session| *session > 0 && *session != own_session)
        .collect();
    let mut found: HashSet<i32> = marked.map(|process| process.pid).collect();
    found.extend(
        processes
            .iter()
            .filter(|process| sessions.contains(&process.session))
            .map(|process| process.pid),
    );
    loop {
        let known = found.len();
        let children = processes
            .iter()
            .filter(|process| found.contains(&process.parent))
            .map(|process| process.pid);
        found.extend(children.collect::<Vec<_>>());
        if found.len() == known {
            break;
        }
    }
    found.into_iter().filter(|pid| *pid > 1 && *pid != own_pid).collect()
}

/// All living processes that can be seen; none without /proc.
fn all_processes(mark: &Mark) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (parent, session) = parent_and_session(&stat)?;
        // Another user's can't be read, and is not ours.
        let marked = fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| mark.is_in(&environment));
        Some(Process {
            pid,
            parent,
            session,
            marked,
        })
    })
    .collect()
}

/// Of a process that is no zombie. The name in parentheses may hold blanks and parentheses, so fields count from its end.
fn parent_and_session(stat: &str) -> Option<(i32, i32)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some((parent, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_the_name() {
        assert_eq!(parent_and_session("42 (a) b (c) S 7 8 9 0 -1"), Some((7, 9)));
        assert_eq!(parent_and_session("42 (sh) Z 7 8 9 0 -1"), None);
        assert_eq!(parent_and_session("garbage"), None);
    }

    #[test]
    fn a_mark_is_found_only_as_a_whole_variable() {
        let root = Path::new("/r");
        let id: BoxId = "bx_22222222".parse().unwrap();
        let mark = Mark::of_box(root, &id);
        let variable = format!("{}={}", Mark::VARIABLE, mark.value());
        assert!(mark.is_in(format!("A=b\0{variable}\0C=d\0").as_bytes()));
        assert!(Mark::of_root(root).is_in(variable.as_bytes()));
        assert!(!mark.is_in(format!("X{variable}\0").as_bytes()));
        assert!(!mark.is_in(format!("{variable}x\0").as_bytes()));
        assert!(!Mark::of_root(Path::new("/s")).is_in(variable.as_bytes()));
    }

    #[test]
    fn sessions_and_descendants_belong_and_our_own_session_does_not() {
        let process = |pid, parent, session, marked| Process {
            pid,
            parent,
            session,
            marked,
        };
        let mut processes = [
            process(50, 1, 50, false),   // ourselves
            process(100, 50, 50, false), // a neighbour of ours
            process(200, 50, 50, true),  // a script that has not made its session yet
            process(300, 1, 300, true),
            process(301, 1, 300, false),   // cleared its environment
            process(400, 301, 400, false), // and its child, in another session
            process(500, 1, 500, false),
        ];
        let mut found = belonging(&processes, 50);
        found.sort_unstable();
        assert_eq!(found, [200, 300, 301, 400]);
        // In a container, whose processes are in a session of its host.
        for process in &mut processes[..3] {
            process.session = 0;
        }
        let mut found = belonging(&processes, 50);
        found.sort_unstable();
        assert_eq!(found, [200, 300, 301, 400]);
    }
}
