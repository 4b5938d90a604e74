//! Every setting, from the environment: read once, checked at start, all faults reported together.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::Url;

use crate::jobs::JobSettings;
use crate::jobs::worker::{WorkerOptions, retention};
use crate::runs::SecretKeys;
use crate::web::WebOptions;
use crate::webhooks::WebhookOptions;

/// The provider where nothing else is configured.
const DEFAULT_BOX_API_URL: &str = "https://ascii.dev/api/box/v1";
/// Reconnecting once a minute costs nothing that shows, and an outcome is tried again for twice as long.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(60);
/// A receiver notes what it is told, and does its work afterwards.
const WEBHOOK_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// All that is wrong with the environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ConfigError(Vec<String>);

impl ConfigError {
    /// Each fault, naming its variable.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid_configuration:")?;
        match self.0.as_slice() {
            [one] => write!(f, " {one}"),
            several => several.iter().try_for_each(|fault| write!(f, "\n  - {fault}")),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Where settings come from; collects what is wrong with them.
pub struct Environment<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    faults: Vec<String>,
}

impl<'a> Environment<'a> {
    /// Settings from `lookup`, which says what a variable is set to.
    #[must_use]
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            lookup,
            faults: Vec::new(),
        }
    }

    /// The value, or every fault found so far.
    ///
    /// # Errors
    /// When anything that was read is not as it should be.
    pub fn finish<T>(self, value: T) -> Result<T, ConfigError> {
        if self.faults.is_empty() {
            Ok(value)
        } else {
            Err(ConfigError(self.faults))
        }
    }

    /// A variable; one that is set to nothing counts as not set.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.trim().is_empty())
    }

    fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    fn number<N>(&mut self, name: &str, default: N, least: N, most: N) -> N
    where
        N: FromStr + PartialOrd + Copy + fmt::Display,
    {
        let Some(text) = self.text(name) else { return default };
        match text.trim().parse::<N>() {
            Ok(number) if number >= least && number <= most => number,
            Ok(_) | Err(_) => {
                self.fault(format!("{name} is a whole number from {least} to {most}, not `{text}`"));
                default
            }
        }
    }

    /// Off unless it is `true`.
    fn flag(&mut self, name: &str) -> bool {
        let Some(text) = self.text(name) else { return false };
        match text.trim() {
            "true" => true,
            "false" => false,
            _ => {
                self.fault(format!("{name} is true or false, not `{text}`"));
                false
            }
        }
    }

    /// The database of boxrun's own processes, which need a direct connection.
    pub fn database(&mut self) -> Option<PgConnectOptions> {
        let name = if self.text("BOXRUN_DATABASE_URL").is_some() {
            "BOXRUN_DATABASE_URL"
        } else {
            "DATABASE_URL"
        };
        let Some(url) = self.text(name) else {
            self.fault("DATABASE_URL is not set; for example postgres://user:password@host/database".to_owned());
            return None;
        };
        match database_options(&url) {
            Ok(options) => Some(options),
            Err(problem) => {
                // Not the URL itself: it has a password in it.
                self.fault(format!("{name} is no address of a PostgreSQL database: {problem}"));
                None
            }
        }
    }

    /// The provider: its address and key.
    pub fn provider(&mut self) -> Provider {
        let text = self
            .text("BOX_API_URL")
            .unwrap_or_else(|| DEFAULT_BOX_API_URL.to_owned());
        let url = Url::parse(&text)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = url.unwrap_or_else(|| {
            self.fault("BOX_API_URL is an http or https address, for example https://ascii.dev/api/box/v1".to_owned());
            Url::parse(DEFAULT_BOX_API_URL).expect("a constant")
        });
        Provider {
            url,
            key: self
                .text("BOX_API_KEY")
                .map(|key| SecretString::from(key.trim().to_owned())),
        }
    }

    /// What seals and opens the secrets of runs and of webhooks.
    pub fn secret_keys(&mut self) -> Option<SecretKeys> {
        let text = self.text("BOXRUN_SECRET_KEYS")?;
        SecretKeys::parse(&text)
            .map_err(|problem| self.fault(format!("BOXRUN_SECRET_KEYS: {problem}")))
            .ok()
    }

    /// How long a run may last: `BOXRUN_MAX_DURATION_SECONDS`, but no longer than a box lives.
    pub fn max_duration(&mut self) -> Duration {
        let ttl: u64 = self.number("BOXRUN_BOX_TTL_SECONDS", 3600, 1, 365 * 86400);
        let wanted: u64 = self.number("BOXRUN_MAX_DURATION_SECONDS", 1800, 1, 365 * 86400);
        Duration::from_secs(wanted.min(ttl))
    }

    /// What a worker needs to be told.
    pub fn worker(&mut self) -> Option<(Provider, WorkerOptions)> {
        let database = self.database();
        let provider = self.provider();
        if provider.key.is_none() {
            self.fault("BOX_API_KEY is not set; a worker can't call the provider without it".to_owned());
        }
        let concurrency = [
            self.number("BOXRUN_START_CONCURRENCY", 50, 0, 100_000),
            self.number("BOXRUN_POLL_CONCURRENCY", 1000, 0, 100_000),
            self.number("BOXRUN_STOP_CONCURRENCY", 50, 0, 100_000),
            self.number("BOXRUN_CLEANUP_CONCURRENCY", 20, 0, 100_000),
        ];
        let jobs = JobSettings {
            poll_interval: Duration::from_millis(self.number("BOXRUN_POLL_INTERVAL_MS", 1000, 1, 3_600_000)),
            output_max_bytes: self.number("BOXRUN_OUTPUT_MAX_BYTES", 24 * 1024, 1024, 64 * 1024 * 1024),
            retention: retention(self.number("BOXRUN_RUN_DIRECTORY_RETENTION_SECONDS", 86400, 0, 365 * 86400)),
        };
        let connections = self.number("BOXRUN_DATABASE_CONNECTIONS", 4, 2, 1000);
        let lease = Duration::from_secs(self.number("BOXRUN_LEASE_SECONDS", 15, 1, 3600));
        let max_duration = self.max_duration();
        let shutdown = Duration::from_secs(self.number("BOXRUN_SHUTDOWN_SECONDS", 25, 0, 3600));
        let secret_keys = self.secret_keys();
        let webhooks = WebhookOptions {
            concurrency: self.number("BOXRUN_WEBHOOK_CONCURRENCY", 20, 0, 1000),
            allow_private: self.flag("BOXRUN_WEBHOOK_ALLOW_PRIVATE"),
            attempt_timeout: WEBHOOK_ATTEMPT_TIMEOUT,
        };
        let options = WorkerOptions {
            webhooks,
            secret_keys,
            database: database?,
            connections,
            connection_lifetime: CONNECTION_LIFETIME,
            lease,
            concurrency,
            jobs,
            max_duration,
            shutdown,
            ops_listen: self.address("BOXRUN_OPS_LISTEN"),
            provider: provider.origin(),
            secrets: provider.key.iter().map(|key| key.expose_secret().to_owned()).collect(),
        };
        Some((provider, options))
    }

    /// What a web process needs to be told.
    pub fn web(&mut self) -> Option<(Provider, WebOptions)> {
        let database = self.database();
        let provider = self.provider();
        let rate: u32 = self.number("BOXRUN_RATE_LIMIT_PER_SECOND", 200, 0, 1_000_000);
        let options = WebOptions {
            connections: self.number("BOXRUN_DATABASE_CONNECTIONS", 5, 1, 1000),
            connection_lifetime: CONNECTION_LIFETIME,
            listen: self.listen(),
            ops_listen: self.address("BOXRUN_OPS_LISTEN"),
            allowed_origins: self.origins("BOXRUN_ALLOWED_ORIGINS"),
            max_duration: self.max_duration(),
            rate_per_second: NonZeroU32::new(rate),
            shutdown: Duration::from_secs(self.number("BOXRUN_SHUTDOWN_SECONDS", 25, 0, 3600)),
            provider: provider.key.is_some().then(|| provider.origin()),
            secrets: provider.key.iter().map(|key| key.expose_secret().to_owned()).collect(),
            secret_keys: self.secret_keys(),
            database: database?,
        };
        Some((provider, options))
    }

    /// Where the web process listens: `BOXRUN_LISTEN`, or all addresses with `PORT`, or only this machine.
    fn listen(&mut self) -> SocketAddr {
        if let Some(address) = self.address("BOXRUN_LISTEN") {
            return address;
        }
        if self.text("PORT").is_some() {
            let port = self.number("PORT", 8080, 1, u16::MAX);
            return ([0, 0, 0, 0], port).into();
        }
        ([127, 0, 0, 1], 8080).into()
    }

    fn address(&mut self, name: &str) -> Option<SocketAddr> {
        let text = self.text(name)?;
        let address = text.trim().parse();
        if address.is_err() {
            self.fault(format!(
                "{name} is an address with a port, for example 127.0.0.1:8080, not `{text}`"
            ));
        }
        address.ok()
    }

    /// Origins separated by commas, as browsers write them: scheme, host and port.
    fn origins(&mut self, name: &str) -> Vec<String> {
        let text = self.text(name).unwrap_or_default();
        let mut origins = Vec::new();
        for origin in text.split(',').map(str::trim).filter(|origin| !origin.is_empty()) {
            let parsed = Url::parse(origin).map(|url| url.origin().ascii_serialization());
            match parsed {
                Ok(written) if written == origin.trim_end_matches('/') && origin.starts_with("http") => {
                    origins.push(written);
                }
                Ok(_) | Err(_) => self.fault(format!(
                    "{name} has origins separated by commas, for example https://app.example.com, not `{origin}`"
                )),
            }
        }
        origins
    }
}

/// The box API and its key.
#[derive(Debug, Clone)]
pub struct Provider {
    pub url: Url,
    pub key: Option<SecretString>,
}

impl Provider {
    /// What the database remembers the provider by.
    #[must_use]
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}

/// Reads an address of a database; TLS is required where nothing else is said and the host is not this one.
///
/// # Errors
/// When it is no such address; the message does not repeat it.
pub fn database_options(url: &str) -> Result<PgConnectOptions, String> {
    let parsed = Url::parse(url).map_err(|error| error.to_string())?;
    if !matches!(parsed.scheme(), "postgres" | "postgresql") {
        return Err("it begins with postgres://".to_owned());
    }
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| error.to_string())?
        .application_name("boxrun");
    let says = |name: &str| parsed.query_pairs().any(|(key, _)| key == name);
    // The url crate reads numbers as addresses only in the schemes of the web.
    let host = parsed
        .host_str()
        .unwrap_or_default()
        .trim_start_matches('[')
        .trim_end_matches(']');
    let local = match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => matches!(host, "" | "localhost") || host.starts_with('/') || host.starts_with("%2F"),
    };
    Ok(if says("sslmode") || says("ssl-mode") || local {
        options
    } else {
        options.ssl_mode(PgSslMode::Require)
    })
}

/// The process's environment.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
#[must_use]
pub fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_faults_are_reported_at_once() {
        let lookup = |name: &str| match name {
            "DATABASE_URL" => Some("mysql://secret@x".to_owned()),
            "BOX_API_URL" => Some("not a url".to_owned()),
            "BOXRUN_LEASE_SECONDS" => Some("0".to_owned()),
            "BOXRUN_OUTPUT_MAX_BYTES" => Some("many".to_owned()),
            "BOXRUN_WEBHOOK_ALLOW_PRIVATE" => Some("yes".to_owned()),
            _ => None,
        };
        let mut environment = Environment::new(&lookup);
        let _ = environment.worker();
        let text = environment.finish(()).unwrap_err().to_string();
        for expected in [
            "DATABASE_URL",
            "BOX_API_URL",
            "BOX_API_KEY",
            "BOXRUN_OUTPUT_MAX_BYTES",
            "BOXRUN_LEASE_SECONDS",
            "BOXRUN_WEBHOOK_ALLOW_PRIVATE",
        ] {
            assert!(text.contains(expected), "{expected} is missing in {text}");
        }
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn tls_is_required_of_a_database_elsewhere_unless_it_says_otherwise() {
        let mode = |url| format!("{:?}", database_options(url).unwrap().get_ssl_mode());
        assert_eq!(mode("postgres://u@db.example/x"), "Require");
        assert_eq!(mode("postgres://u@db.example/x?sslmode=disable"), "Disable");
        assert_eq!(mode("postgres://u@127.0.0.1/x"), "Prefer");
        assert_eq!(mode("postgres://u@[::1]:5432/x"), "Prefer");
        assert_eq!(mode("postgres://u@10.0.0.5/x"), "Require");
        assert_eq!(mode("postgres://u@localhost/x"), "Prefer");
        assert_eq!(mode("postgres:///x?host=/tmp"), "Prefer");
    }

    #[test]
    fn web_listens_on_this_machine_alone_unless_it_is_told_otherwise() {
        let listen = |set: &'static [(&str, &str)]| {
            let lookup = move |name: &str| {
                let value = set.iter().find(|(other, _)| *other == name);
                value.map(|(_, value)| (*value).to_owned())
            };
            let mut environment = Environment::new(&lookup);
            let address = environment.listen();
            environment.finish(address).map(|address| address.to_string())
        };
        assert_eq!(listen(&[]).unwrap(), "127.0.0.1:8080");
        assert_eq!(listen(&[("PORT", "5000")]).unwrap(), "0.0.0.0:5000");
        assert_eq!(
            listen(&[("PORT", "5000"), ("BOXRUN_LISTEN", "[::1]:9000")]).unwrap(),
            "[::1]:9000"
        );
        assert!(listen(&[("BOXRUN_LISTEN", "localhost")]).is_err());
        assert!(listen(&[("PORT", "http")]).is_err());
    }

    #[test]
    fn origins_are_written_as_browsers_write_them() {
        let origins = |text: &'static str| {
            let lookup = move |_: &str| Some(text.to_owned());
            let mut environment = Environment::new(&lookup);
            let origins = environment.origins("BOXRUN_ALLOWED_ORIGINS");
            environment.finish(origins)
        };
        assert_eq!(
            origins("https://app.example.com, http://localhost:3000/").unwrap(),
            ["https://app.example.com", "http://localhost:3000"]
        );
        for wrong in [
            "*",
            "app.example.com",
            "https://app.example.com/page",
            "https://APP.example.com",
        ] {
            assert!(origins(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_run_lasts_no_longer_than_a_box() {
        let lookup = |name: &str| (name == "BOXRUN_BOX_TTL_SECONDS").then(|| "60".to_owned());
        assert_eq!(Environment::new(&lookup).max_duration(), Duration::from_secs(60));
    }
}
