//! The provider: its HTTP client, the sh scripts that run on a box, and the reading of their answers. Knows no SQL.
//!
//! A call to a box is three steps: [`scripts`] writes the text, [`client`] sends it once, [`answers`] reads what came back.

pub mod answers;
pub mod client;
pub mod error;
mod operation;
pub mod scripts;

pub use client::{BoxClient, BoxClientBuildError, BoxInfo, BoxState, CommandOutput, Readiness};
pub use error::{BoxError, BoxErrorCode, Effect};
pub use operation::Operation;
pub use scripts::Script;
