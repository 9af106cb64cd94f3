//! Which variables pass from a user's environment to the daemon and from there to servers.

const INHERITED: &[&str] = &[
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "TZ",
    "TMPDIR",
    "DOCKER_HOST",
    "SSH_AUTH_SOCK",
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

const PROXIES: &[&str] = &["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"];

const FAMILIES: &[&str] = &["LC_", "XDG_"];

/// Whether a variable is inherited. A server gets other variables, such as secrets, only from its spec.
pub fn is_inherited(variable: &str) -> bool {
    INHERITED.contains(&variable)
        || PROXIES.iter().any(|proxy| proxy.eq_ignore_ascii_case(variable))
        || FAMILIES.iter().any(|family| variable.starts_with(family))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_passed_on() {
        for passed in ["HOME", "LC_ALL", "https_proxy", "NO_PROXY", "XDG_RUNTIME_DIR"] {
            assert!(is_inherited(passed), "{passed}");
        }
        for kept in ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "HOMEPAGE", "LD_PRELOAD", ""] {
            assert!(!is_inherited(kept), "{kept}");
        }
    }
}
