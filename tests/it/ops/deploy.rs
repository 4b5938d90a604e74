//! What is in deploy/: as far as text can be checked without the systems that it is for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use boxrun::cli::Cli;
use clap::Parser as _;
use yaml_rust2::{Yaml, YamlLoader};

/// Where the units have the program.
const INSTALLED: &str = "/usr/local/bin/boxrun";
/// `BOXRUN_SHUTDOWN_SECONDS` where nothing else is said; a manager that sends SIGKILL waits for at least 5 seconds more.
const SHUTDOWN_SECONDS: i64 = 25;
const MARGIN_SECONDS: i64 = 5;
/// systemd-analyze's measure from 0 (nothing may be done) to 10, in tenths; below 2.0 is its best mark.
const EXPOSURE_MAX: &str = "20";

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

pub fn text(path: &str) -> String {
    fs::read_to_string(deploy(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

pub fn yaml(path: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(&text(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

/// The files of a folder below deploy/, with their names.
fn files(folder: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(deploy(folder)).expect("a folder");
    let names = entries.map(|entry| entry.expect("a file").file_name().into_string().expect("a name"));
    let mut files: Vec<_> = names
        .map(|name| (name.clone(), text(&format!("{folder}/{name}"))))
        .collect();
    files.sort();
    files
}

fn units() -> Vec<(String, String)> {
    files("systemd")
        .into_iter()
        .filter(|(name, _)| name.ends_with(".service"))
        .collect()
}

/// Whether a program is installed; says so where it is not, because the test shows nothing then.
pub fn is_installed(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: {program} is not installed");
    }
    there
}

#[test]
fn systemd_takes_each_unit_and_finds_it_hardened() {
    if !is_installed("systemd-analyze") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut paths = Vec::new();
    for (name, unit) in units() {
        let path = folder.path().join(name);
        // It looks for the program.
        fs::write(&path, unit.replace(INSTALLED, env!("CARGO_BIN_EXE_boxrun"))).expect("a unit");
        paths.push(path);
    }
    assert_eq!(paths.len(), 3);
    let analyze = |arguments: &[&str], paths: &[PathBuf]| {
        let output = Command::new("systemd-analyze")
            .args(arguments)
            .args(paths)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let complaints = analyze(&["verify"], &paths);
    assert!(!complaints.contains("boxrun-"), "{complaints}");
    for path in paths {
        analyze(&["security", "--offline=true", "--threshold", EXPOSURE_MAX], &[path]);
    }
}

#[test]
fn a_unit_starts_a_subcommand_and_waits_for_an_orderly_end() {
    for (name, unit) in units() {
        let setting = |key: &str| {
            let prefix = format!("{key}=");
            unit.lines()
                .find_map(|line| line.strip_prefix(prefix.as_str()))
                .unwrap_or_default()
        };
        let words: Vec<&str> = setting("ExecStart").split(' ').collect();
        assert_eq!(words[0], INSTALLED, "{name}");
        Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{name}: {error}"));
        if name == "boxrun-migrate.service" {
            continue;
        }
        let stop: i64 = setting("TimeoutStopSec")
            .parse()
            .unwrap_or_else(|_| panic!("{name}: seconds"));
        assert!(stop >= SHUTDOWN_SECONDS + MARGIN_SECONDS, "{name}");
        assert_eq!(setting("Restart"), "always", "{name}");
    }
}

/// All objects in deploy/kubernetes, with the files that they are in.
fn objects() -> Vec<(String, Yaml)> {
    let names = files("kubernetes").into_iter().map(|(name, _)| name);
    names
        .flat_map(|name| {
            yaml(&format!("kubernetes/{name}"))
                .into_iter()
                .map(move |object| (name.clone(), object))
        })
        .collect()
}

fn environment(container: &Yaml) -> BTreeMap<&str, &str> {
    let variables = container["env"].as_vec().map(Vec::as_slice).unwrap_or_default();
    variables
        .iter()
        .map(|variable| {
            let value = variable["value"]
                .as_str()
                .expect("a text: YAML has no other environment");
            (variable["name"].as_str().expect("a name"), value)
        })
        .collect()
}

#[test]
fn kubernetes_probes_the_private_port_and_waits_for_an_orderly_end() {
    let mut deployments = 0;
    for (file, object) in objects()
        .iter()
        .filter(|(_, object)| object["kind"].as_str() == Some("Deployment"))
    {
        deployments += 1;
        let pod = &object["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let environment = environment(container);
        let ops = container["ports"]
            .as_vec()
            .unwrap()
            .iter()
            .find(|port| port["name"].as_str() == Some("ops"));
        let port = ops.unwrap_or_else(|| panic!("{file}: a private port"))["containerPort"]
            .as_i64()
            .unwrap();
        assert_eq!(environment["BOXRUN_OPS_LISTEN"], format!("0.0.0.0:{port}"), "{file}");
        for (probe, path) in [
            ("startupProbe", "/healthz"),
            ("livenessProbe", "/healthz"),
            ("readinessProbe", "/readyz"),
        ] {
            let get = &container[probe]["httpGet"];
            assert_eq!(
                (get["path"].as_str(), get["port"].as_str()),
                (Some(path), Some("ops")),
                "{file} {probe}"
            );
        }
        assert!(
            container["readinessProbe"]["timeoutSeconds"].as_i64() > Some(3),
            "{file}: it may take 3 s to answer"
        );

        let shutdown: i64 = environment["BOXRUN_SHUTDOWN_SECONDS"].parse().unwrap();
        let before = &container["lifecycle"]["preStop"]["exec"]["command"];
        let before: i64 = before[1].as_str().map_or(0, |seconds| seconds.parse().unwrap());
        let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap();
        assert!(grace >= before + shutdown + MARGIN_SECONDS, "{file}: {grace}");
    }
    assert_eq!(deployments, 2);
}

#[test]
fn kubernetes_gives_no_container_more_rights_than_it_needs() {
    let mut containers = 0;
    for (file, object) in objects() {
        let pod = &object["spec"]["template"]["spec"];
        let Some(of_pod) = pod["containers"].as_vec() else {
            continue;
        };
        assert_eq!(pod["securityContext"]["runAsNonRoot"].as_bool(), Some(true), "{file}");
        assert_eq!(pod["automountServiceAccountToken"].as_bool(), Some(false), "{file}");
        for container in of_pod {
            containers += 1;
            let rights = &container["securityContext"];
            assert_eq!(rights["allowPrivilegeEscalation"].as_bool(), Some(false), "{file}");
            assert_eq!(rights["readOnlyRootFilesystem"].as_bool(), Some(true), "{file}");
            assert_eq!(rights["capabilities"]["drop"][0].as_str(), Some("ALL"), "{file}");
            assert!(container["resources"]["limits"]["memory"].as_str().is_some(), "{file}");
            let arguments = container["args"]
                .as_vec()
                .unwrap()
                .iter()
                .map(|word| word.as_str().unwrap());
            let words: Vec<&str> = std::iter::once("boxrun").chain(arguments).collect();
            Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{file}: {error}"));
        }
    }
    assert_eq!(containers, 3);
}

#[test]
fn budgets_and_services_find_the_pods_that_they_are_for() {
    let objects = objects();
    let labels = |yaml: &Yaml| format!("{yaml:?}");
    let pods: BTreeSet<String> = objects
        .iter()
        .filter(|(_, object)| object["kind"].as_str() == Some("Deployment"))
        .map(|(_, object)| labels(&object["spec"]["template"]["metadata"]["labels"]))
        .collect();
    for (file, object) in &objects {
        let selector = match object["kind"].as_str() {
            Some("Deployment" | "PodDisruptionBudget") => &object["spec"]["selector"]["matchLabels"],
            Some("Service") => &object["spec"]["selector"],
            Some("Job") => continue,
            other => panic!("{file}: {other:?}"),
        };
        assert!(pods.contains(&labels(selector)), "{file}: {selector:?}");
    }
}

/// A setting that is misspelt would be ignored without a word.
#[test]
fn each_setting_that_is_named_is_one_that_is_read() {
    let config = include_str!("../../../src/config.rs");
    let elsewhere = ["RUST_LOG", "BOXRUN_LOG_FORMAT"];
    let mut named = BTreeSet::new();
    let mut everything = files("systemd");
    everything.extend(files("kubernetes"));
    for file in ["Containerfile", "README.md"] {
        everything.push((file.to_owned(), text(file)));
    }
    for (_, text) in &everything {
        let words = text.split(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
        named.extend(words.filter(|word| word.starts_with("BOX") && word.contains('_')));
    }
    assert!(
        named.contains("BOXRUN_OPS_LISTEN") && named.contains("BOX_API_KEY"),
        "{named:?}"
    );
    for name in named {
        assert!(
            config.contains(&format!("\"{name}\"")) || elsewhere.contains(&name),
            "{name}"
        );
    }
}
