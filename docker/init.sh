#!/bin/sh
# Makes or upgrades Airflow's database, its connection and its password, before any part starts.
# The first call also writes airflow.cfg, with new Fernet and JWT keys that all parts share.
set -eu
umask 077
airflow db migrate
airflow connections import "$(dirname "$0")/connections.json" # leaves one alone that exists

passwords=$AIRFLOW_HOME/simple_auth_manager_passwords.json.generated
if [ -n "${AIRFLOW_ADMIN_PASSWORD:-}" ]; then
    python -c 'import json, os; print(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))' > "$passwords"
    echo "The page's user is admin, with the password from .env."
    exit
fi
if [ ! -s "$passwords" ]; then
    python -c 'import json, secrets; print(json.dumps({"admin": secrets.token_urlsafe(12)}))' > "$passwords"
fi
echo "User and password of the page: $(cat "$passwords")"
