//! The secret that all ranks of a launch know, and nobody else.
//!
//! The principal function is [`secret`]. A file or a variable that the user names comes first, then the key that Open
//! MPI makes for every job, then a key file of the user, which the first rank makes. So ranks of one computer, and
//! ranks that share a home folder, need no set-up.

use super::environment::Environment;
use super::{LaunchError, LaunchResult};
use runtime::Secret;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A shorter secret can be guessed.
const SHORTEST: usize = 16;
/// A longer file is not a secret but a mistake.
const LONGEST: u64 = 64 << 10;

/// The secret of this launch.
///
/// # Errors
/// Bad input if the named secret is too short, too long, or readable by others.
pub fn secret(file: Option<&Path>, environment: &Environment) -> LaunchResult<Secret> {
    if let Some(path) = file {
        return read(path);
    }
    if let Some(text) = environment.get("ANTIPHON_SECRET") {
        return of_text(text.as_bytes(), "ANTIPHON_SECRET");
    }
    // 128 random bits, which mpirun gives only to the processes of one job.
    if let Some(key) = environment.get("OMPI_MCA_orte_precondition_transports") {
        return of_text(key.as_bytes(), "OMPI_MCA_orte_precondition_transports");
    }
    let hint = "--secret-file F or ANTIPHON_SECRET gives one";
    let path =
        place(environment).ok_or_else(|| LaunchError::new("there is no home folder to keep a secret in").hint(hint))?;
    make(&path).map_err(|error| io_failure(&path, error).hint(hint))?;
    read(&path)
}

/// The path of the user's own key.
fn place(environment: &Environment) -> Option<PathBuf> {
    let state = environment.get("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.or_else(|| environment.get("HOME").map(|home| Path::new(home).join(".local/state")));
    state.map(|state| state.join("antiphon/secret"))
}

/// A secret that was given as a text.
///
/// # Errors
/// If it is too short.
pub(crate) fn of_text(text: &[u8], origin: &str) -> LaunchResult<Secret> {
    let text = text.trim_ascii();
    if text.len() < SHORTEST {
        let what = format!("{origin} has {} bytes; a secret has at least {SHORTEST}", text.len());
        return Err(LaunchError::new(what).hint("head -c 32 /dev/urandom | base64 makes one"));
    }
    Ok(Secret::from_text(text))
}

/// Reads a file that only its owner can read.
fn read(path: &Path) -> LaunchResult<Secret> {
    let file = topology::open_input(&path.to_string_lossy()).map_err(|error| LaunchError::new(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| io_failure(path, error))?;
    let mode = metadata.permissions().mode();
    if metadata.is_file() && mode & 0o077 != 0 {
        let what = format!("{}: others can read this secret (mode {:o})", path.display(), mode & 0o777);
        return Err(LaunchError::new(what).hint(format!("chmod 600 {}", path.display())));
    }
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).map_err(|error| io_failure(path, error))?;
    of_text(&text, &path.display().to_string())
}

/// Makes the user's key if it does not exist: completely or not at all, even if other processes do the same at the same
/// time.
fn make(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|_| !path.exists()) else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut random = [0; 40];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    // The end of the random text is part of this process's file name; the rest is the key.
    let draft = folder.join(format!(".secret-{}-{}", std::process::id(), &text[64..]));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let linked = writeln!(file, "{}", &text[..64]).and_then(|()| file.sync_all()).and_then(|()| {
        match std::fs::hard_link(&draft, path) {
            // Another process was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    });
    std::fs::remove_file(&draft)?;
    linked
}

/// The text of a file that cannot be read or written.
fn io_failure(path: &Path, error: io::Error) -> LaunchError {
    LaunchError::new(format!("{}: cannot be used: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn the_first_who_comes_makes_the_key_and_all_read_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("new").display().to_string();
        let environment = Environment::of(&[("HOME", &home)]);
        let barrier = Barrier::new(8);
        let secrets: Vec<Secret> = std::thread::scope(|scope| {
            let read = || {
                barrier.wait();
                secret(None, &environment).unwrap()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0]));
        let path = place(&environment).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = secret(None, &environment).unwrap_err();
        let error = format!("{error}: {}", error.hint.as_deref().unwrap_or_default());
        assert!(error.contains("others can read") && error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_named_secret_comes_first_and_must_be_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let save = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        save("0123456789abcdef\n");
        let variables = [
            ("ANTIPHON_SECRET", "a secret of the environment"),
            ("OMPI_MCA_orte_precondition_transports", "d6a1e32a5c2e3b1d-9f0c8a7b6d5e4f3a"),
        ];
        let text = |text: &str| Secret::from_text(text.as_bytes());
        let of = |file, variables| secret(file, &Environment::of(variables));
        assert_eq!(of(Some(path.as_path()), &variables).unwrap(), text("0123456789abcdef"));
        assert_eq!(of(None, &variables).unwrap(), text(variables[0].1));
        assert_eq!(of(None, &variables[1..]).unwrap(), text(variables[1].1));
        save("short");
        for error in [of(Some(path.as_path()), &[]), of(None, &[("ANTIPHON_SECRET", "x")]), of(None, &[])] {
            assert!(error.is_err());
        }
        assert!(of(Some(folder.path().join("none").as_path()), &[]).is_err());
    }
}
