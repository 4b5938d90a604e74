//! The box scripts, run for real under each of the three shells: promises of `box_api::scripts` and `box_api::answers`.

mod crowd;
mod disk;
mod kill;
mod poll;
mod processes;
mod sandbox;
mod start;
mod surroundings;

/// Makes each test once for each shell.
macro_rules! under_each_shell {
    ($($test:ident),+ $(,)?) => {
        mod dash { $(#[test] fn $test() { super::$test(&crate::scripts::sandbox::Sandbox::new("dash")); })+ }
        mod bash { $(#[test] fn $test() { super::$test(&crate::scripts::sandbox::Sandbox::new("bash")); })+ }
        mod busybox { $(#[test] fn $test() { super::$test(&crate::scripts::sandbox::Sandbox::new("busybox")); })+ }
    };
}
use under_each_shell;
