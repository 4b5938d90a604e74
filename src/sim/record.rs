//! The record: what was asked and what was really done, one JSON object a line, only ever appended to.
//!
//! Events: `request` (as it arrived, with the fault chosen for it), `started` (a script really runs), `finished` (with its
//! exit code and, of a dispatch, its last line), `refused` (with the code), `box` (a change of a box). `number` counts
//! requests and joins their events, also over restarts on the same root.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::{SimError, clock};

pub(super) struct Record {
    path: PathBuf,
    file: Mutex<File>,
    next_number: AtomicU64,
}

impl Record {
    pub fn open(root: &Path) -> Result<Self, SimError> {
        let path = root.join("record.jsonl");
        let error = |source| SimError::Files {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(error)?;
        let text = fs::read_to_string(&path).map_err(error)?;
        if !text.is_empty() && !text.ends_with('\n') {
            // Killed in the middle of a line.
            file.write_all(b"\n").map_err(error)?;
        }
        let next_number = AtomicU64::new(last_number(&text).map_or(0, |last| last + 1));
        Ok(Self {
            path,
            file: Mutex::new(file),
            next_number,
        })
    }

    /// The number of a request that has just arrived.
    pub fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Appends `fields` with the time. A record that can't be written is said in the log; the box goes on.
    pub fn write(&self, fields: Value) {
        let mut line = json!({ "time": clock::now() });
        if let (Some(line), Value::Object(fields)) = (line.as_object_mut(), fields) {
            line.extend(fields);
        }
        if let Err(error) = self.append(&format!("{line}\n")) {
            tracing::error!(%error, path = %self.path.display(), "the simulator can't write its record");
        }
    }

    fn append(&self, line: &str) -> io::Result<()> {
        // One write a line, so that a reader sees whole lines.
        self.file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(line.as_bytes())
    }

    pub fn read(&self) -> Result<String, SimError> {
        fs::read_to_string(&self.path).map_err(|source| SimError::Files {
            path: self.path.clone(),
            source,
        })
    }
}

fn last_number(text: &str) -> Option<u64> {
    let numbers = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["number"].as_u64());
    numbers.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_after_a_restart_and_a_torn_line() {
        let root = tempfile::tempdir().unwrap();
        let record = Record::open(root.path()).unwrap();
        let number = record.next_number();
        record.write(json!({ "number": number, "event": "request" }));
        record.append("{\"number\":").unwrap();
        drop(record);
        let record = Record::open(root.path()).unwrap();
        assert_eq!((number, record.next_number()), (0, 1));
        assert!(record.read().unwrap().ends_with('\n'));
    }
}
