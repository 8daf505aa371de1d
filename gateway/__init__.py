"""The gateway: a server for front ends (`actors.facade.Facade`) that has its requests executed by replicas."""
