//! A box of one's own: a home in a temporary directory, and a `sh` that is the shell under test.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use boxrun::box_api::answers::{
    CleanupAnswer, DispatchAnswer, PollAnswer, PollReport, Printed, ProbeAnswer, StopAnswer, read_cleanup,
    read_dispatch, read_poll, read_probe, read_stop,
};
use boxrun::box_api::scripts::{self, Launch, RunPlace, Script};
use boxrun::ids::RunId;
use tempfile::TempDir;
use uuid::Uuid;

use super::processes::Process;
use crate::support::wait::wait_until_blocking;

/// What a script may use besides the shell.
const TOOLS: [&str; 24] = [
    "base64", "cat", "chmod", "date", "env", "grep", "head", "ls", "mkdir", "mkfifo", "mv", "nohup", "rm", "rmdir",
    "setsid", "sleep", "stat", "tail", "touch", "tr", "truncate", "seq", "ln", "readlink",
];

/// Longer than any script may take.
const SCRIPT_LIMIT: Duration = Duration::from_secs(60);

pub struct Sandbox {
    shell: &'static str,
    root: TempDir,
    run_id: RunId,
    run_directory: String,
}

impl Sandbox {
    /// A box whose `sh` is `shell`; busybox brings its own tools too, as on Alpine.
    pub fn new(shell: &'static str) -> Self {
        let root = tempfile::Builder::new().prefix("boxrun-").tempdir().unwrap();
        let bin = root.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::create_dir(root.path().join("home")).unwrap();
        let shell_path = which(shell).unwrap_or_else(|| panic!("{shell} is not installed: apt-get install {shell}"));
        symlink(&shell_path, bin.join("sh")).unwrap();
        let applets = if shell == "busybox" {
            applets(&shell_path)
        } else {
            String::new()
        };
        for tool in TOOLS {
            let target = if applets.lines().any(|applet| applet == tool) {
                Some(shell_path.clone())
            } else {
                which(tool)
            };
            symlink(
                target.unwrap_or_else(|| panic!("{tool} is not installed")),
                bin.join(tool),
            )
            .unwrap();
        }
        let run_id = RunId(Uuid::now_v7());
        Self {
            shell,
            root,
            run_id,
            run_directory: format!("$HOME/.openagents/box-runs/users/u1/{run_id}"),
        }
    }

    /// A box like this one: a box has one run.
    pub fn another(&self) -> Self {
        Self::new(self.shell)
    }

    /// The shell under test, in a group of its own: a signal to the group must not reach the tests.
    pub fn shell(&self) -> Command {
        let mut command = self.command(self.bin().join("sh").to_str().unwrap());
        command.process_group(0);
        command
    }

    pub fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    pub fn bin(&self) -> PathBuf {
        self.root.path().join("bin")
    }

    /// The run directory, or a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.home()
            .join(self.run_directory.strip_prefix("$HOME/").unwrap())
            .join(name)
    }

    pub fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.file(name)).unwrap_or_default()).into_owned()
    }

    pub fn mark(&self) -> String {
        format!("BOXRUN_RUN_ID={}", self.run_id)
    }

    pub fn place(&self) -> RunPlace<'_> {
        RunPlace {
            run_id: self.run_id,
            run_directory: &self.run_directory,
        }
    }

    /// A process on the box, outside of any run.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", self.bin())
            .env("HOME", self.home())
            .env("BOXRUN_BOOT_ID_FILE", self.boot_id_file());
        command.current_dir(self.root.path()).stdin(Stdio::null());
        command
    }

    pub fn boot_id_file(&self) -> PathBuf {
        self.root.path().join("boot-id")
    }

    /// Runs the script as the provider does, until it ends and nobody holds its output.
    pub fn run(&self, script: &Script) -> Answer {
        let mut command = self.shell();
        command
            .arg("-c")
            .arg(&script.text)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let id = child.id();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
        let output = receiver
            .recv_timeout(SCRIPT_LIMIT)
            .unwrap_or_else(|_| panic!("the script {id} hangs:\n{}", script.text));
        Answer::of(&output)
    }

    pub fn launch(&self, launch: &Launch) -> DispatchAnswer {
        let answer = self.run(&scripts::dispatch(&self.place(), launch));
        assert_eq!(answer.stderr, "", "a dispatch complains");
        read_dispatch(&answer.printed())
    }

    pub fn dispatch(&self, command: &str) -> DispatchAnswer {
        let env = BTreeMap::new();
        self.launch(&Launch {
            command,
            cwd: None,
            env: &env,
            watchdog: Duration::from_secs(600),
            secret_env: &[],
            git: None,
        })
    }

    /// Dispatches, and returns the wrapper's pid.
    pub fn start(&self, command: &str) -> u32 {
        match self.dispatch(command) {
            DispatchAnswer::Started { pid } => u32::try_from(pid).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn probe(&self) -> ProbeAnswer {
        read_probe(&self.run(&scripts::probe(&self.place())).printed())
    }

    pub fn poll_answer(&self, offset: u64, max_bytes: u64) -> PollAnswer {
        let answer = self.run(&scripts::poll(&self.place(), offset, max_bytes));
        assert_eq!(answer.stderr, "", "a poll complains");
        read_poll(&answer.printed(), offset)
    }

    pub fn poll(&self) -> PollReport {
        match self.poll_answer(0, 1 << 20) {
            PollAnswer::Present(report) => report,
            other => panic!("{other:?}"),
        }
    }

    /// The poll that first sees the exit.
    pub fn poll_until_exit(&self) -> PollReport {
        wait_until_blocking("the exit is recorded", || self.poll(), |report| report.exit.is_some())
    }

    pub fn stop_within(&self, grace: Duration) -> StopAnswer {
        let answer = self.run(&scripts::stop(&self.place(), 0, 1 << 20, grace));
        assert_eq!(answer.stderr, "", "a stop complains");
        read_stop(&answer.printed(), 0)
    }

    pub fn stop(&self) -> StopAnswer {
        self.stop_within(Duration::from_secs(2))
    }

    pub fn cleanup(&self) -> CleanupAnswer {
        let answer = self.run(&scripts::cleanup(&self.place()));
        assert_eq!(answer.stderr, "", "a cleanup complains");
        read_cleanup(&answer.printed())
    }

    /// What the command wrote there, a pid: waits for a whole line.
    pub fn pid_in(&self, file: &str) -> Process {
        let path = self.home().join(file);
        let look = || fs::read_to_string(&path).unwrap_or_default();
        let text = wait_until_blocking(&format!("a pid is in {file}"), look, |text| text.ends_with('\n'));
        Process::of(text.trim().parse().unwrap()).unwrap_or_else(|| panic!("process {text} of {file} is gone already"))
    }

    /// Writes a program in sh, its path relative to the box's root.
    pub fn program(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::write(&path, format!("#!{}\n{text}\n", self.bin().join("sh").display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Has something happen each time just before a tool does its work.
    pub fn before(&self, tool: &str, deed: &str) {
        let path = self.bin().join(tool);
        let real = self.root.path().join(format!("real-{tool}"));
        fs::create_dir(&real).unwrap();
        // Under its own name, by which busybox tells what it is to be.
        symlink(fs::read_link(&path).unwrap(), real.join(tool)).unwrap();
        fs::remove_file(&path).unwrap();
        self.program(
            &format!("bin/{tool}"),
            &format!("{deed}\nexec {}/{tool} \"$@\"", real.display()),
        );
    }

    /// Gives a file or directory of the run an age.
    pub fn age(&self, name: &str, seconds: i64) {
        let when = chrono::Utc::now().timestamp() - seconds;
        let done = self
            .command("/usr/bin/touch")
            .arg("-d")
            .arg(format!("@{when}"))
            .arg(self.file(name))
            .status()
            .unwrap();
        assert!(done.success());
    }
}

impl Drop for Sandbox {
    /// Whatever still belongs to this box goes, so that a failing test leaves nothing.
    fn drop(&mut self) {
        let home = format!("HOME={}", self.home().display());
        for process in Process::all() {
            if process.environment().contains(&home) {
                process.signal("KILL");
            }
        }
    }
}

/// What a script printed.
#[derive(Debug)]
pub struct Answer {
    pub stdout: String,
    pub stderr: String,
    pub exit_code: Option<i64>,
}

impl Answer {
    fn of(output: &Output) -> Self {
        Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            exit_code: output.status.code().map(i64::from),
        }
    }

    pub fn printed(&self) -> Printed<'_> {
        Printed {
            stdout: &self.stdout,
            exit_code: self.exit_code,
            stdout_truncated: false,
        }
    }
}

fn which(tool: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
        .iter()
        .map(|folder| Path::new(folder).join(tool))
        .find(|path| path.exists())
}

fn applets(busybox: &Path) -> String {
    String::from_utf8(Command::new(busybox).arg("--list").output().unwrap().stdout).unwrap()
}
