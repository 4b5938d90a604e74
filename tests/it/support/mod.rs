//! What the tests share.

pub mod app;
pub mod bare_script;
pub mod box_says;
pub mod program;
pub mod scripted_box;
pub mod wait;
pub mod worker;
