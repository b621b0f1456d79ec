"""Ray's copies of the working directory, uploaded for a submitted job and deleted after it."""

from fnmatch import fnmatchcase
from pathlib import Path

from raylab.errors import ConfigError

COPIES = "/working_dir_files/_ray_pkg_"
"""Part of the path of each copy."""
KEY_FILES = tuple(
    """
    *.env* *.key *key*.pem *.p12 *.pfx *.ppk *.jks *.keystore *.kdbx *.tfvars *.tfstate* id_rsa*
    id_dsa* id_ecdsa* id_ed25519* auth_token* token.json kubeconfig* credentials credentials*.json
    credentials*.y*ml credentials*.toml credentials*.ini credentials*.csv *service-account*.json
    *service_account*.json secret.json secret.y*ml secret.toml secrets.json secrets.y*ml
    secrets.toml .git-credentials .netrc _netrc .pgpass .my.cnf .pypirc .npmrc .dockercfg
    .htpasswd .boto .s3cfg .vault-token
    """.split()
)
"""Names of files that usually hold keys; `.gitignore` and `.rayignore` have the same."""


def is_in_copy(path: str | Path) -> bool:
    """Returns True if a local path lies in such a copy."""
    return COPIES in str(path)


def refuse_keys(directory: Path) -> None:
    """Refuses to run in a copy with files that usually hold keys.

    Raises:
        ConfigError: The directory is a copy and has such files.
    """
    if not is_in_copy(directory):
        return
    files = [path for path in directory.rglob("*") if path.is_file()]
    keys = sorted(
        str(path.relative_to(directory))
        for path in files
        if any(fnmatchcase(path.name.lower(), pattern) for pattern in KEY_FILES)
    )
    if keys:
        raise ConfigError(
            f"the working directory of this job was uploaded with {', '.join(keys)}, which all "
            "who can use the cluster may have read: replace the keys in them, remove the files or "
            "list them in .rayignore, and submit again"
        )
