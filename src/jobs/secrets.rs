//! Opening a run's secrets: to dispatch it, and to redact its output.

use crate::box_api::scripts::GitLogin;
use crate::queue::ClaimedJob;
use crate::runs::Run;
use crate::runs::decide::{CallFailure, Effect, Fault};
use crate::runs::masking::Masker;
use crate::runs::secrets::{self, GitCredential, OpenError, RunSecrets, percent_encoded};

use super::{Context, commit};

/// Opens the run's secrets. `None`: the database stayed out of reach, or the lease is lost.
pub(super) async fn open(context: &Context, job: &ClaimedJob, run: &Run) -> Option<Result<RunSecrets, OpenError>> {
    if !run.has_secrets {
        return Some(Ok(RunSecrets::default()));
    }
    let sealed = commit::retrying(job, "reading a run's secrets", || async {
        let mut conn = context.pool.get().acquire().await?;
        secrets::load(&mut conn, run.id).await
    })
    .await?;
    let Some(sealed) = sealed else {
        return Some(Err(OpenError::Damaged));
    };
    let Some(keys) = &context.secret_keys else {
        return Some(Err(OpenError::UnknownKey(sealed.key_id)));
    };
    Some(keys.open(run.id, &sealed))
}

/// What masks the run's output: without its secrets none of it may be released.
pub(super) async fn masker(context: &Context, job: &ClaimedJob, run: &Run) -> Option<Result<Masker, OpenError>> {
    if !run.has_secrets {
        return Some(Ok(context.masker.clone()));
    }
    let opened = open(context, job, run).await?;
    Some(opened.map(|secrets| context.masker.with(secrets.texts())))
}

/// The failure of a poll whose output can't be redacted.
pub(super) fn unreadable(error: &OpenError) -> CallFailure {
    CallFailure {
        effect: Effect::MayHaveRun,
        fault: Fault {
            code: "secret_unreadable",
            text: error.to_string(),
            retry_after: None,
        },
    }
}

/// A credential in the words of git's own files.
pub(super) struct GitLines {
    credential: String,
    url: String,
}

impl GitLines {
    pub fn of(credential: &GitCredential) -> Self {
        let host = &credential.host;
        let scheme = if is_loopback(host) { "http" } else { "https" };
        let (user, password) = (
            percent_encoded(&credential.username),
            percent_encoded(credential.password.expose()),
        );
        Self {
            credential: format!("{scheme}://{user}:{password}@{host}"),
            url: format!("{scheme}://{host}"),
        }
    }

    pub fn login(&self) -> GitLogin<'_> {
        GitLogin {
            credential: &self.credential,
            url: &self.url,
        }
    }
}

/// A password travels in clear only where it does not leave the box.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost"
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::Secret;

    #[test]
    fn a_password_goes_in_clear_only_to_the_box_itself() {
        let lines = |host: &str| {
            let password = Secret::new("p@ss/word");
            let lines = GitLines::of(&GitCredential {
                host: host.to_owned(),
                username: "bob@x".to_owned(),
                password,
            });
            (lines.credential, lines.url)
        };
        for (host, expected) in [
            ("git.example", "https://git.example"),
            ("git.example:8443", "https://git.example:8443"),
            ("127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("localhost", "http://localhost"),
            ("[::1]:3000", "http://[::1]:3000"),
            ("localhost.example", "https://localhost.example"),
        ] {
            let (credential, url) = lines(host);
            assert_eq!(url, expected);
            assert_eq!(credential, expected.replace("://", "://bob%40x:p%40ss%2Fword@"));
        }
    }
}
