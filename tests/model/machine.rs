//! The box: what the scripts find and leave there, one atomic step at a time. A line or two for each script.

use super::rules::Rules;

/// The exit status of a command that ends by itself, and of one that was killed.
pub const OWN_EXIT: u8 = 0;
pub const KILLED_EXIT: u8 = 143;
/// How long a log is in the end, in lines.
pub const LOG_LINES: u8 = 1;

/// Who has the start lock of a run directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Launch {
    Free,
    Wrapper,
    /// A stop, or a poll that waited long enough: nobody starts it any more.
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Directory {
    pub launch: Launch,
    /// Wrappers that have not come to take the lock.
    pub starting: u8,
    /// Commands that run.
    pub alive: u8,
    pub log: u8,
    pub exit: Option<u8>,
    pub kill_requested: bool,
    /// The request to kill came before the exit.
    pub killed: bool,
    /// The box lost its processes since.
    pub restarted: bool,
}

/// What is at a run directory's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    Nothing,
    Tombstone,
    Directory(Directory),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Dispatch,
    Probe,
    Poll,
    Stop,
}

/// How far a script has come: other things happen between its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    Sent,
    /// A poll that has seen the first of what it looks at.
    Looked {
        alive: bool,
        exit: Option<u8>,
        killed: bool,
        never_started: bool,
        log: u8,
    },
    /// A stop that has left word and now kills.
    Killing,
}

/// What a worker learns of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    Started,
    AlreadyThere,
    Tombstone,
    Absent,
    Present,
    Polled {
        alive: bool,
        exit: Option<u8>,
        killed: bool,
        never_started: bool,
        restarted: bool,
        log: u8,
    },
    Killed {
        log: u8,
    },
    EndedBefore {
        exit: u8,
        log: u8,
    },
    /// It may have run.
    None,
    /// It certainly did not run, and may be sent again.
    NotTaken,
    /// The box is stopped: it did not run.
    BoxStopped,
}

/// What a step of a script leads to.
pub enum Outcome {
    Answer(Answer),
    GoesOn(Stage),
}

impl Place {
    pub fn directory(&self) -> Option<&Directory> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Nothing | Self::Tombstone => None,
        }
    }

    pub fn directory_mut(&mut self) -> Option<&mut Directory> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Nothing | Self::Tombstone => None,
        }
    }

    pub fn alive(&self) -> u8 {
        self.directory().map_or(0, |directory| directory.alive)
    }

    fn leave_tombstone(&mut self, rules: &Rules) {
        if rules.tombstone {
            *self = Self::Tombstone;
        }
    }

    /// One step of the script `kind` that has come to `stage`. `late`: it was sent long after the dispatch.
    pub fn step(&mut self, rules: &Rules, kind: Kind, stage: Stage, late: bool) -> Outcome {
        match (kind, stage) {
            (Kind::Dispatch, _) => Outcome::Answer(self.dispatch(rules)),
            (Kind::Probe, _) => Outcome::Answer(match self {
                Self::Directory(_) => Answer::Present,
                Self::Nothing | Self::Tombstone => {
                    self.leave_tombstone(rules);
                    Answer::Absent
                }
            }),
            (Kind::Poll, Stage::Sent) => match self {
                Self::Directory(directory) => Outcome::GoesOn(directory.begin_poll(rules, late)),
                Self::Nothing | Self::Tombstone => Outcome::Answer(Answer::Absent),
            },
            (Kind::Poll, looked) => Outcome::Answer(match self {
                Self::Directory(directory) => directory.end_poll(rules, looked),
                Self::Nothing | Self::Tombstone => Answer::None,
            }),
            (Kind::Stop, Stage::Sent) => match self {
                Self::Directory(directory) => directory.begin_stop(rules),
                Self::Nothing | Self::Tombstone => {
                    self.leave_tombstone(rules);
                    Outcome::Answer(Answer::Absent)
                }
            },
            (Kind::Stop, _) => Outcome::Answer(match self {
                Self::Directory(directory) => directory.end_stop(),
                Self::Nothing | Self::Tombstone => Answer::None,
            }),
        }
    }

    /// `dispatch.sh`: the directory is the lock; the wrapper comes later.
    fn dispatch(&mut self, rules: &Rules) -> Answer {
        match self {
            Self::Tombstone => Answer::Tombstone,
            Self::Nothing => {
                *self = Self::Directory(Directory {
                    launch: Launch::Free,
                    starting: 1,
                    alive: 0,
                    log: 0,
                    exit: None,
                    kill_requested: false,
                    killed: false,
                    restarted: false,
                });
                Answer::Started
            }
            Self::Directory(_) if rules.directory_lock => Answer::AlreadyThere,
            Self::Directory(directory) => {
                directory.starting += 1;
                directory.launch = Launch::Free;
                Answer::Started
            }
        }
    }
}

impl Directory {
    /// `wrapper.sh`: whether the command starts.
    pub fn wrapper_comes(&mut self, rules: &Rules) -> bool {
        self.starting -= 1;
        if rules.launch_lock && self.launch != Launch::Free {
            return false;
        }
        self.launch = Launch::Wrapper;
        if self.kill_requested {
            self.end(KILLED_EXIT);
            return false;
        }
        self.alive += 1;
        true
    }

    /// The command has ended and its wrapper has recorded it.
    pub fn end(&mut self, exit: u8) {
        self.alive = 0;
        if self.exit.is_none() {
            self.exit = Some(exit);
            self.killed = self.kill_requested;
        }
    }

    /// All processes are gone; files stay.
    pub fn restart(&mut self) {
        self.alive = 0;
        self.starting = 0;
        self.restarted = true;
    }

    fn looks_alive(&self) -> bool {
        match self.launch {
            Launch::Free => true,
            Launch::Wrapper => self.alive > 0,
            Launch::Never => false,
        }
    }

    fn begin_poll(&mut self, rules: &Rules, late: bool) -> Stage {
        if late && self.launch == Launch::Free {
            self.launch = Launch::Never;
        }
        Stage::Looked {
            alive: rules.alive_before_exit && self.looks_alive(),
            exit: if rules.alive_before_exit { None } else { self.exit },
            killed: self.killed,
            never_started: self.launch == Launch::Never,
            log: self.log,
        }
    }

    fn end_poll(&self, rules: &Rules, looked: Stage) -> Answer {
        let Stage::Looked {
            alive,
            exit,
            killed,
            never_started,
            log,
        } = looked
        else {
            return Answer::None;
        };
        let (exit, killed, alive) = if rules.alive_before_exit {
            (self.exit, self.killed, alive)
        } else {
            (exit, killed, self.looks_alive())
        };
        Answer::Polled {
            alive,
            exit,
            killed,
            never_started,
            restarted: self.restarted,
            log: if rules.log_after_exit { self.log } else { log },
        }
    }

    fn begin_stop(&mut self, rules: &Rules) -> Outcome {
        match self.exit {
            Some(_) if self.kill_requested => Outcome::Answer(Answer::Killed { log: self.log }),
            Some(exit) => Outcome::Answer(Answer::EndedBefore { exit, log: self.log }),
            None => {
                self.kill_requested = rules.kill_requested;
                if self.launch == Launch::Free {
                    self.launch = Launch::Never;
                }
                Outcome::GoesOn(Stage::Killing)
            }
        }
    }

    fn end_stop(&mut self) -> Answer {
        if self.alive > 0 {
            self.end(KILLED_EXIT);
        }
        Answer::Killed { log: self.log }
    }
}
