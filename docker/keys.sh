#!/bin/sh
# Makes at the first start what nobody else may know; later ones leave it alone. Runs as root.
#   keys.sh FOLDER USER: FOLDER/airflow is for Airflow, which runs as USER, and for the database,
#   FOLDER/hosts for the training hosts
set -eu
umask 077
cd "$1"
mkdir -p airflow hosts

if [ ! -s airflow/database_url ]; then
    password=$(python -c 'import secrets; print(secrets.token_urlsafe(24))')
    # Airflow and Postgres would take the end of a line for a part of the text.
    printf %s "$password" > airflow/database_password
    printf %s "postgresql+psycopg2://airflow:$password@postgres/airflow" > airflow/database_url
    echo "made a password for the database"
fi

if [ ! -s airflow/known_hosts ]; then
    rm -f airflow/trainer* hosts/host_key*
    ssh-keygen -q -t ed25519 -N '' -C trainer -f airflow/trainer
    # One for both hosts: they are two copies of one toy.
    ssh-keygen -q -t ed25519 -N '' -C host -f hosts/host_key
    cp airflow/trainer.pub hosts/authorized_keys
    echo "gpu1,gpu2 $(cat hosts/host_key.pub)" > airflow/known_hosts
    echo "made keys for the training hosts"
fi

chown -R "$2" airflow
# sshd reads the authorized keys as the user who logs in.
chmod 755 hosts
chmod 644 hosts/authorized_keys
