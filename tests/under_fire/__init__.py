"""The whole pipeline while everything dies: agents, gateways, processors, broker, trainer."""
