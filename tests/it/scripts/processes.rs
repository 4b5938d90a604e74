//! Looking at processes on the box, and strangers among them.

use std::fs;
use std::process::{Child, Command, Stdio};

use super::sandbox::Sandbox;

/// A process that the test did not start itself, told from a later one with its pid by its start time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub start: String,
}

impl Process {
    /// The living process with this pid.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        (!["Z", "X"].contains(&fields[0])).then(|| Self {
            pid,
            start: fields[19].to_owned(),
        })
    }

    pub fn all() -> Vec<Self> {
        let pids = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter_map(Self::of).collect()
    }

    pub fn lives(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    pub fn signal(&self, signal: &str) {
        if self.lives() {
            let _ = Command::new("/bin/kill")
                .arg(format!("-{signal}"))
                .arg(self.pid.to_string())
                .stderr(Stdio::null())
                .status();
        }
    }

    pub fn environment(&self) -> String {
        String::from_utf8_lossy(&fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default()).into_owned()
    }
}

/// A process that has nothing to do with the run, in a session of its own; killed with the test.
pub struct Stranger(Child);

impl Stranger {
    pub fn on(sandbox: &Sandbox) -> Self {
        Self(
            sandbox
                .command("/usr/bin/setsid")
                .args(["/bin/sleep", "1000"])
                .spawn()
                .unwrap(),
        )
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
