//! The import rules of ARCHITECTURE.md, read off the source: which module may name what, and what is absent where.
//!
//! Comments and the tests inside a file are not looked at: a rule binds what is built into the program.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The longest file under `src`, in lines. A file that grows beyond it hides a concept that wants a file of its own.
const FILE_LINES_MAX: usize = 600;

/// Modules and the only other modules of ours that they may name. What is not listed may name any.
const ARROWS: &[(&str, &[&str])] = &[
    ("ids", &[]),
    ("schema", &[]),
    ("telemetry", &[]),
    ("http_server", &[]),
    ("postgres", &[]),
    ("sim", &["ids"]),
    ("runs", &["ids"]),
    ("queue", &["ids", "telemetry"]),
    ("retry_after", &[]),
    ("box_api", &["ids", "retry_after", "telemetry"]),
    ("webhooks", &["ids", "queue", "retry_after", "runs", "telemetry"]),
    ("ops", &["http_server", "queue", "schema", "telemetry"]),
    (
        "jobs",
        &[
            "box_api",
            "ids",
            "ops",
            "queue",
            "runs",
            "schema",
            "telemetry",
            "webhooks",
        ],
    ),
    ("config", &["jobs", "runs", "web", "webhooks"]),
    (
        "web",
        &[
            "box_api",
            "http_server",
            "ids",
            "ops",
            "queue",
            "runs",
            "schema",
            "telemetry",
            "webhooks",
        ],
    ),
];

/// Something that may stand only in some places.
struct Absence {
    why: &'static str,
    /// Paths below `src` that the rule is for; empty: all.
    inside: &'static [&'static str],
    /// Paths below `src` that are exempt.
    except: &'static [&'static str],
    /// None of these paths may be named. A path matches from the start of a word: `rand::` is not in `operand::`.
    words: &'static [&'static str],
}

const ABSENCES: &[Absence] = &[
    Absence {
        why: "only queue/ names apalis, so that it can be replaced in one place",
        inside: &[],
        except: &["queue/"],
        words: &["apalis", "apalis_core"],
    },
    Absence {
        why: "webhooks/ calls receivers from one file, apart from its SQL: no transaction can be open across a call",
        inside: &["webhooks/deliver.rs", "webhooks/target.rs"],
        except: &[],
        words: &["sqlx"],
    },
    Absence {
        why: "runs/ knows no HTTP: it is the same whatever the provider and whoever asks",
        inside: &["runs/"],
        except: &[],
        words: &["reqwest", "axum", "hyper", "hyper_util", "http", "http_body_util"],
    },
    Absence {
        why: "only telemetry/ names the metrics crates, so that every metric stands in one list",
        inside: &[],
        except: &["telemetry/"],
        words: &["metrics", "metrics_exporter_prometheus"],
    },
    Absence {
        why: "box_api/ knows no SQL: what a call means for a run is decided elsewhere",
        inside: &["box_api/"],
        except: &[],
        words: &["sqlx"],
    },
    Absence {
        why: "sim/ stands for somebody else's machine: it sees no database of ours",
        inside: &["sim/"],
        except: &[],
        words: &["sqlx"],
    },
    Absence {
        why: "only box_api/ calls the provider, so that no second client can repeat a command; the command line asks a web process, and webhooks call receivers",
        inside: &[],
        except: &[
            "box_api/",
            "cli/remote.rs",
            "cli/follow.rs",
            "webhooks/deliver.rs",
            "webhooks/target.rs",
        ],
        words: &["reqwest"],
    },
    Absence {
        why: "decisions are pure: no clock, no randomness, no environment, no network, no database, no waiting",
        inside: &[
            "runs/decide/",
            "runs/state.rs",
            "runs/masking/",
            "jobs/backoff.rs",
            "queue/backoff.rs",
            "webhooks/outcome.rs",
            "webhooks/body.rs",
        ],
        except: &[],
        words: &[
            "Utc::now",
            "Local::now",
            "Instant",
            "SystemTime",
            "rand",
            "std::env",
            "env::var",
            "std::net",
            "std::fs",
            "tokio",
            "sqlx::query",
            "PgConnection",
            "PgPool",
            "async fn",
            "Uuid::new_v4",
            "Uuid::now_v7",
        ],
    },
    Absence {
        why: "no worker's clock decides anything: wall-clock time is the database's",
        inside: &["runs/", "queue/", "jobs/", "webhooks/"],
        // It compares a Retry-After that is a date.
        except: &["webhooks/deliver.rs"],
        words: &["Utc::now", "Local::now", "SystemTime"],
    },
    Absence {
        why: "settings come from config, which reports all faults at once",
        inside: &[
            "runs/",
            "queue/",
            "jobs/",
            "webhooks/",
            "box_api/",
            "schema.rs",
            "ids.rs",
        ],
        except: &[],
        words: &["std::env", "env::var", "env::var_os"],
    },
    Absence {
        why: "the library prints nothing: the command line does",
        inside: &["runs/", "queue/", "jobs/", "webhooks/", "box_api/", "sim/"],
        except: &[],
        words: &["println!", "eprintln!", "print!", "eprint!", "dbg!"],
    },
];

struct Source {
    /// Below `src`, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// `runs` for `runs/decide/poll.rs`, `config` for `config.rs`.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// Numbered lines of code, without comments, up to the tests at the end of the file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate();
        lines
            .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
            .map(|(number, line)| (number + 1, without_comment(line)))
            .filter(|(_, line)| !line.trim().is_empty())
    }
}

#[test]
fn modules_name_only_what_they_may() {
    let mut broken = String::new();
    for source in sources() {
        let Some((_, allowed)) = ARROWS.iter().find(|(module, _)| *module == source.module()) else {
            continue;
        };
        for (number, line) in source.code() {
            if line.trim_end().ends_with("use crate::{") {
                let _ = writeln!(broken, "src/{}:{number}: one `use` a module, please", source.path);
            }
            for other in crate_modules_in(line) {
                if other != source.module() && !allowed.contains(&other) {
                    let _ = writeln!(
                        broken,
                        "src/{}:{number}: {} names crate::{other}; it may name {}",
                        source.path,
                        source.module(),
                        listed(allowed),
                    );
                }
            }
        }
    }
    assert!(
        broken.is_empty(),
        "arrows between modules are broken (ARCHITECTURE.md, Code map):\n{broken}"
    );
}

#[test]
fn what_must_be_absent_is_absent() {
    let mut broken = String::new();
    for source in sources() {
        let under = |places: &[&str]| places.iter().any(|place| source.path.starts_with(place));
        let rules = ABSENCES
            .iter()
            .filter(|rule| (rule.inside.is_empty() || under(rule.inside)) && !under(rule.except));
        for rule in rules {
            for (number, line) in source.code() {
                for word in rule.words.iter().filter(|word| names(line, word)) {
                    let _ = writeln!(broken, "src/{}:{number}: names `{word}`; {}", source.path, rule.why);
                }
            }
        }
    }
    assert!(
        broken.is_empty(),
        "rules of what is absent where are broken (ARCHITECTURE.md, Code map):\n{broken}"
    );
}

#[test]
fn every_rule_is_about_files_that_exist() {
    let sources = sources();
    let exists = |place: &str| sources.iter().any(|source| source.path.starts_with(place));
    for place in ABSENCES.iter().flat_map(|rule| rule.inside.iter().chain(rule.except)) {
        assert!(
            exists(place),
            "a rule is about src/{place}, which is not there: adapt it in tests/it/architecture.rs"
        );
    }
}

#[test]
fn no_source_file_is_too_long() {
    for source in sources() {
        let lines = source.text.lines().count();
        assert!(
            lines < FILE_LINES_MAX,
            "src/{} has {lines} lines; below {FILE_LINES_MAX}: look for the concept that it hides",
            source.path
        );
    }
}

#[test]
fn the_guide_names_only_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md can be read");
    let mut missing = String::new();
    for (number, line) in guide.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2).filter(|name| is_path(name)) {
            if !["", "src", "src/box_api/scripts", "tests/it"]
                .iter()
                .any(|base| root.join(base).join(name).exists())
            {
                let _ = writeln!(missing, "ARCHITECTURE.md:{}: {name}", number + 1);
            }
        }
    }
    assert!(
        missing.is_empty(),
        "named in ARCHITECTURE.md and not there (below ., src or tests/it):\n{missing}"
    );
}

#[test]
fn the_guide_names_only_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md can be read");
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files);
    collect(&root.join("tests/it"), &mut files);
    let read = |file: &PathBuf| fs::read_to_string(file).expect("a source file can be read");
    let code: String = files.iter().map(read).collect();
    // Tests are named as the property that they prove, so their names are long. Those below tests/it begin with `it::`.
    let is_test = |name: &str| {
        name.matches('_').count() >= 3
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let is_here = |module: &str| match module.strip_prefix("it::") {
        Some(module) => root
            .join(format!("tests/it/{}.rs", module.split("::").next().unwrap_or_default()))
            .exists(),
        None => true,
    };
    let mut missing = String::new();
    for (number, line) in guide.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2) {
            let Some((module, test)) = name.rsplit_once("::") else {
                continue;
            };
            if is_test(test) && is_here(module) && !code.contains(&format!("fn {test}(")) {
                let _ = writeln!(missing, "ARCHITECTURE.md:{}: {name}", number + 1);
            }
        }
    }
    assert!(
        missing.is_empty(),
        "tests named in ARCHITECTURE.md that are not there:\n{missing}"
    );
}

/// Documents whose tables say in their last column which tests show it.
const SHOWN: &[&str] = &["docs/robustness.md", "docs/guarantees.md"];

/// Each row of the tables names tests as `module::name` of a path that ends a file's or a module's: all of them are there.
#[test]
fn the_table_of_situations_names_only_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "tests/it", "tests/model"] {
        collect(&root.join(folder), &mut files);
    }
    let texts: Vec<(String, String)> = files
        .iter()
        .map(|file| {
            let below = file.strip_prefix(root).expect("it was found below the root");
            let path = below.with_extension("").to_string_lossy().replace('\\', "/");
            let path = path.strip_suffix("/mod").unwrap_or(&path).replace('/', "::");
            (path, fs::read_to_string(file).expect("a source file can be read"))
        })
        .collect();
    let has_test = |name: &str| {
        let (module, test) = name.rsplit_once("::").unwrap_or_default();
        texts.iter().any(|(path, text)| {
            format!("::{path}").ends_with(&format!("::{module}")) && text.contains(&format!("fn {test}("))
        })
    };
    let mut faults = String::new();
    for document in SHOWN {
        let text = fs::read_to_string(root.join(document)).expect("the document can be read");
        let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with("| "));
        // The first row of a table and the line below it are no situations.
        let heads = ["| situation", "| mechanism", "| when |", "| ---"];
        for (number, line) in rows.filter(|(_, line)| !heads.iter().any(|head| line.starts_with(head))) {
            let shown = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
            let named: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
            if named.is_empty() && !shown.trim_start().starts_with("by hand:") {
                let _ = writeln!(faults, "{document}:{}: names no test", number + 1);
            }
            for name in named {
                let is_there = if name.contains("::") {
                    has_test(name)
                } else {
                    root.join(name).exists()
                };
                if !is_there {
                    let _ = writeln!(faults, "{document}:{}: {name} is not there", number + 1);
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

/// A file or folder of ours, as the guide writes them.
fn is_path(name: &str) -> bool {
    let of_ours = [".rs", ".sql", ".sh", "/"].iter().any(|end| name.ends_with(end));
    of_ours
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'))
}

/// A line up to its comment; the slashes of a URL begin none.
fn without_comment(line: &str) -> &str {
    let begins_comment = |at: &usize| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
    let comment = line.match_indices("//").map(|(at, _)| at).find(begins_comment);
    comment.map_or(line, |at| &line[..at])
}

fn listed(modules: &[&str]) -> String {
    match modules {
        [] => "no other module of ours".to_owned(),
        _ => modules.join(", "),
    }
}

/// The modules that a line names as `crate::module`, or in `use crate::{a, b::c}` on one line.
fn crate_modules_in(line: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = &line[at + "crate::".len()..];
        let items: Vec<&str> = match rest.strip_prefix('{') {
            Some(list) => list.split(['{', '}', ',']).map(str::trim).collect(),
            None => vec![rest],
        };
        for item in items {
            let end = item.find(|c| !is_name(c)).unwrap_or(item.len());
            if end > 0 && item.starts_with(|c: char| c.is_ascii_lowercase()) {
                found.push(&item[..end]);
            }
        }
    }
    found
}

/// Whether a line names `word`, not as a part of a longer name.
fn names(line: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        // A path of ours that ends so (`super::http`) and a field (`.http`) are something else.
        let alone = before.is_none_or(|c| !is_name(c) && c != '.' && c != '"') && after.is_none_or(|c| !is_name(c));
        // A lower-case single word is a crate only where a path goes on from it.
        let is_crate = word.chars().all(is_name) && word.starts_with(|c: char| c.is_ascii_lowercase());
        alone && (!is_crate || line[at + word.len()..].starts_with("::"))
    })
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    collect(&root, &mut found);
    let mut sources: Vec<_> = found
        .into_iter()
        .map(|file| {
            let below = file.strip_prefix(&root).expect("it was found below src");
            Source {
                path: below.to_string_lossy().replace('\\', "/"),
                text: fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())),
            }
        })
        .collect();
    sources.retain(|source| !source.path.ends_with("tests.rs"));
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!sources.is_empty(), "no source under {}", root.display());
    sources
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn names_are_found_as_whole_words() {
    assert!(names("use reqwest::Client;", "reqwest"));
    assert!(names("let at = chrono::Utc::now();", "Utc::now"));
    assert!(names("    rand::rng()", "rand"));
    assert!(!names("self.shared.http.get(url)", "http"));
    assert!(!names("operand::rng()", "rand"));
    assert!(!names("let rand = 1;", "rand"));
    assert_eq!(crate_modules_in("use crate::queue::Claimer;"), ["queue"]);
    assert_eq!(crate_modules_in("use crate::{ids::RunId, queue};"), ["ids", "queue"]);
    assert_eq!(crate_modules_in("pub(crate) fn apply()"), Vec::<&str>::new());
}
